"""`dapo evaluate`: how good a checkpoint or model is, by the same path as validation in training."""
