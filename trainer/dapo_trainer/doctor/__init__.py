"""`dapo doctor`: whether a machine can train what a job asks of it, before anything is fetched or started."""
