"""The run's Ray cluster and data queue, started before verl is imported: they begin while this process imports."""

import threading

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf


class Cluster:
    def __init__(self, config: DictConfig) -> None:
        init = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
        assert isinstance(init, dict)
        ray.init(**{str(key): value for key, value in init.items()})
        self._error: BaseException | None = None
        self._queue = threading.Thread(target=self._start_queue, args=(config,), name="start-queue", daemon=True)
        self._queue.start()

    def _start_queue(self, config: DictConfig) -> None:
        try:
            tq.init(config.transfer_queue)
        except BaseException as error:
            self._error = error

    def ready(self) -> None:
        """Wait for the queue; raises what its start raised."""
        self._queue.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        tq.close()
        ray.shutdown()
