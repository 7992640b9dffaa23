"""Names of container images. Pure."""


def image_by_digest(image: str, image_id: str) -> str | None:
    """An image with the digest that the kubelet reports (`imageID`) in place of its tag. None when there is none, or it
    is not of this name: an image that was loaded into the node has an ID that no registry knows."""
    repository, _, digest = image_id.removeprefix("docker-pullable://").partition("@")
    named = _repository(image)
    same = _without_default_registry(named) == _without_default_registry(repository)
    return f"{named}@{digest}" if same and digest.startswith("sha256:") else None


def _repository(image: str) -> str:
    name = image.partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    # The colon of a registry's port is followed by a path.
    return repository if colon and "/" not in tag else name


def _without_default_registry(repository: str) -> str:
    return repository.removeprefix("docker.io/").removeprefix("library/")
