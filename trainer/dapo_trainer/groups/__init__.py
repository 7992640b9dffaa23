"""Groups: the responses sampled for one prompt. Which are trained on, their metrics, and the samples that are kept."""
