"""The vectors of tasks that users make: `VectorSampledTasks` and `SingleProcessVectorSampledTasks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Unpack

from treadle.pool.options import CommonKeywords
from treadle.tasks import arguments
from treadle.tasks.commands import SampledTasks
from treadle.tasks.core import CALLBACK_KEY, METRICS_KEY, RLStepResult, TaskSampler
from treadle.tasks.sensors import Sensor, SensorSuite

COMPLETE_TASK_METRICS_KEY, COMPLETE_TASK_CALLBACK_KEY = METRICS_KEY, CALLBACK_KEY  # as AllenAct's module has them


class VectorSampledTasks(SampledTasks):
    """Streams of tasks in processes of their own, stepped together. See `SampledTasks` for what it does.

    Args:
        make_sampler_fn: makes one sampler; called in its worker with a dict of `sampler_fn_args`, and with `mp_ctx` as
            well if it takes that. It travels by cloudpickle: lambdas and closures are fine.
        sampler_fn_args: one dict a sampler, none of which is changed.
        positional: older scripts give more by position, in either of AllenAct's two orders.
        callback_sensors: asked when a task is done; see `SampledTasks`.
        auto_resample_when_done: does a slot move on when its task is done? False: it waits until those of all unpaused
            slots are, and is given None as action meanwhile.
        multiprocessing_start_method: "forkserver", "spawn" or "fork".
        mp_ctx: a multiprocessing context instead, of which the start method counts. Both at once are refused.
        metrics_out_queue: anything with `put_nowait`, which metrics are put into as well. A full one is left alone.
            None: a `queue.Queue` of this process, which keeps the latest 10,000.
        should_log: tell the "treadle" logger of each sampler's arguments (level INFO).
        max_processes: how many workers at most; None: one a sampler. They have contiguous shares, the first ones one
            sampler more where it does not come out even.
        read_timeout: seconds for one call, after which it raises WorkerTimeout (a TimeoutError); late answers are
            dropped. None: no limit.
        backend: "process", "thread", or "serial" (in the caller). The time limit is only measured in the latter two.
        start_timeout: seconds until all samplers are made; five times `read_timeout` where that is more.
        on_failure: what a worker's death, or a missed `read_timeout`, leads to. "raise". "restart": the present tasks
            of its slots are cut (done, truncated, info["aborted"]), fresh samplers are made, those with a finite
            length are brought to where the old ones were, and info["restarted"] is on the first observation. "drop":
            they are cut, and have no task any more (info["dropped"], observation None).
        **options: max_restarts, close_timeout, worker_output, preload: see `treadle.pool.options.PoolOptions`.

    Raises:
        StartupFailed: a sampler could not be made, or has no first task (then it is a RuntimeError too); nothing is
            left running.
        NotSupported (a NotImplementedError): the samplers' observation spaces are not equal.
        UsageError.
    """

    @arguments.in_either_order(arguments.OLDER, arguments.NEWER)
    def __init__(
        self,
        make_sampler_fn: Callable[..., TaskSampler],
        sampler_fn_args: Sequence[dict[str, Any]] | None = None,
        *positional: Any,
        callback_sensors: Sequence[Sensor[Any]] | SensorSuite[Any] | None = None,
        auto_resample_when_done: bool = True,
        multiprocessing_start_method: str | None = arguments.DEFAULT_METHOD,
        mp_ctx: BaseContext | None = None,
        metrics_out_queue: Any = None,
        should_log: bool = True,
        max_processes: int | None = None,
        read_timeout: float | None = 60,
        backend: str = "process",
        start_timeout: float = 120.0,
        on_failure: str = "raise",
        **options: Unpack[CommonKeywords],
    ) -> None:
        start = arguments.starting(multiprocessing_start_method, mp_ctx)
        super().__init__(
            make_sampler_fn,
            sampler_fn_args,
            callbacks=callback_sensors,
            resample=auto_resample_when_done,
            start=start,
            metrics_out_queue=metrics_out_queue,
            should_log=should_log,
            max_processes=max_processes,
            read_timeout=read_timeout,
            backend=backend,
            start_method=start.method if backend == "process" else None,
            start_timeout=arguments.start_limit(start_timeout, read_timeout),
            on_failure=on_failure,
            **options,
        )


class SingleProcessVectorSampledTasks(SampledTasks):
    """The same with everything in the caller: no workers, no limits of time. See `VectorSampledTasks`.

    Args:
        sampler_fn_args_list: as `sampler_fn_args` there. `mp_ctx` is None for samplers whose dict does not have it.
        callback_sensor_suite: as `callback_sensors` there.
    """

    @arguments.in_either_order(arguments.OLDER_SINGLE, arguments.NEWER_SINGLE)
    def __init__(
        self,
        make_sampler_fn: Callable[..., TaskSampler],
        sampler_fn_args_list: Sequence[dict[str, Any]] | None = None,
        *positional: Any,
        callback_sensor_suite: SensorSuite[Any] | Sequence[Sensor[Any]] | None = None,
        auto_resample_when_done: bool = True,
        should_log: bool = True,
        metrics_out_queue: Any = None,
    ) -> None:
        super().__init__(
            make_sampler_fn,
            sampler_fn_args_list,
            callbacks=callback_sensor_suite,
            resample=auto_resample_when_done,
            metrics_out_queue=metrics_out_queue,
            should_log=should_log,
            backend="serial",
        )

    # AllenAct's two classes name this argument differently

    def step_at(self, index_process: int, action: Any) -> list[RLStepResult]:
        """See `VectorSampledTasks.step_at`."""
        return super().step_at(index_process, action)

    def next_task_at(self, index_process: int) -> list[Any]:
        """See `VectorSampledTasks.next_task_at`."""
        return super().next_task_at(index_process)
