"""The Kubernetes objects of a job, as mappings. Pure: the same job and attempt always give the same objects."""
