"""The trainer's settings: one typed model for environment, job file, README and --help.

Imports neither torch nor kubernetes. `trainer/config/environment.py` reads it from TRAINER_*.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

_Text = Annotated[str, StringConstraints(min_length=1)]


def _steps(text: str) -> str:
    """Check FIRST:LAST. Raises ValueError."""
    first, colon, last = text.partition(":")
    if text and not (
        colon and first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)
    ):
        raise ValueError("must be FIRST:LAST, as in 100:105")
    return text


class Settings(BaseModel):
    """The settings of a run. Each description is shown by --help, in the schema and in the README.

    Extra fields, `own`, are the texts of a task's own settings; `parse` allows no other extra fields.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        alias_generator=to_camel,
        validate_by_name=True,
        allow_inf_nan=False,
    )

    task: _Text = Field(
        "digits", description="the task to train: a built-in one, or package.module:Class"
    )
    mode: _Text = Field("auto", description="parallel training mode; auto chooses one")
    mesh: str = Field(
        "",
        description="sizes of the device mesh, e.g. dp_replicate=4; their product is the world size "
        "(default: set by the mode)",
    )
    epochs: int = Field(30, ge=0, description="passes over the training data")
    steps: int | None = Field(None, ge=0, description="optimiser steps; overrides epochs")
    global_batch: int = Field(32, ge=1, description="samples per optimiser step, over all ranks")
    micro_batch: int | None = Field(
        None,
        ge=1,
        description="samples per forward pass of a rank; gradients are accumulated (default: one pass)",
    )
    optimizer: Literal["sgd", "adamw", "adamw-fused", "muon"] = Field(
        "sgd",
        description="optimiser: sgd, adamw, adamw-fused (one kernel for the update), or muon (for "
        "matrices; adamw for the rest)",
    )
    lr: float = Field(0.03, gt=0, description="peak learning rate")
    lr_scale: Literal["none", "linear", "sqrt"] = Field(
        "none",
        description="scale the rate by the global batch / TRAINER_LR_BASE_BATCH: none, linear or sqrt",
    )
    lr_base_batch: int = Field(
        32, ge=1, description="global batch for which TRAINER_LR was tuned; see TRAINER_LR_SCALE"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd and muon")
    weight_decay: float = Field(0.005, ge=0, description="weight decay, for every optimiser")
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="learning rate after the warm-up: cosine (decays to zero) or constant"
    )
    warmup_steps: int = Field(20, ge=0, description="steps of linear warm-up")
    clip_norm: float = Field(1.0, ge=0, description="clip the global gradient norm; 0 disables")
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp64"] = Field(
        "fp32",
        description="fp32, tf32 (Ampere or newer), bf16 or fp16 autocast (fp16 with loss scaling), or "
        "fp64",
    )
    activation_checkpointing: bool = Field(
        False, description="recompute blocks in the backward pass to save memory"
    )
    compile: bool | Literal["step"] = Field(
        False,
        description="true: compile each block with torch.compile; step: compile gradient, clipping and "
        "update together (single and ddp)",
    )
    channels_last: bool = Field(
        False, description="store images in channels-last format, which GPUs prefer"
    )
    ema_decay: float = Field(
        0,
        ge=0,
        lt=1,
        description="evaluate a moving average of the weights with this decay; 0 disables",
    )
    fingerprint_steps: int = Field(
        0, ge=0, description="compare the replicas' weights bit by bit every N steps; 0 disables"
    )
    nonfinite_allowance: int = Field(
        5,
        ge=1,
        description="skip up to N non-finite steps in a row, then go back to a checkpoint; if that does "
        "not help, exit 72",
    )
    bucket_mb: float = Field(25, gt=0, description="ddp: size of a bucket of gradients in MB")
    static_graph: bool = Field(
        False, description="ddp: assume that every step uses the same parameters, which is faster"
    )
    find_unused_parameters: bool = Field(
        False, description="ddp: allow steps that do not use every parameter, as with experts"
    )
    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = Field(
        "none",
        description="ddp: compress gradients for the all-reduce: none, fp16, bf16 or powersgd",
    )
    sync_batchnorm: bool = Field(
        False, description="compute BatchNorm statistics over the samples of all ranks"
    )
    processes: int | None = Field(
        None, ge=1, description="hogwild: number of processes (default: torch.get_num_threads())"
    )
    local_steps: int = Field(8, ge=1, description="localsgd: average the weights every N steps")
    local_state: Literal["average", "reset"] = Field(
        "average",
        description="localsgd: average or reset the optimiser state when the weights are averaged",
    )
    outer_lr: float | None = Field(
        None,
        gt=0,
        description="localsgd: learning rate of the outer optimiser (DiLoCo: 0.7); unset: none",
    )
    outer_momentum: float = Field(
        0.9, ge=0, lt=1, description="localsgd: Nesterov momentum of the outer optimiser"
    )
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved-1f1b", "interleaved-zb", "zbv"] = (
        Field(
            "1f1b",
            description="pp: pipeline schedule: gpipe, 1f1b, interleaved-1f1b, interleaved-zb or zbv",
        )
    )
    stages: int | None = Field(
        None,
        ge=1,
        description="mp, pp: number of stages (default: mp, one per GPU, at least 2; pp, the schedule's "
        "minimum)",
    )
    reshard: bool = Field(
        True, description="fsdp, hsdp: free gathered parameters between forward and backward pass"
    )
    sequence_parallel: bool = Field(
        True, description="tp: shard norms and the activations between layers along the sequence"
    )
    loss_parallel: bool = Field(
        False, description="tp: compute the loss on logits sharded by class, without gathering them"
    )
    cpu_offload: bool = Field(
        False, description="fsdp, hsdp: keep parameter shards in host memory while unused"
    )
    seed: int = Field(
        0, ge=0, lt=2**32, description="seed of initial weights, data order and dropout"
    )
    init: Path | None = Field(
        None,
        description="initial weights: a .safetensors file, a folder of them, or a state dict",
    )
    init_skip: str = Field(
        "", description="tensors that are not loaded from init, e.g. fc.*,head.*"
    )
    freeze: str = Field("", description="parameters that are not trained, e.g. conv1.*,layer1.*")
    data: Path | None = Field(
        None, description="folder of the task's data, for tasks that need one"
    )
    workers: int = Field(
        0, ge=0, description="DataLoader worker processes per rank, for data that is not in memory"
    )
    download: bool = Field(False, description="download the task's data set if it is missing")
    model: str | None = Field(
        None,
        description="imagefolder, cifar10: a classification model of torchvision; huggingface: a name, "
        "folder or configuration; seqclass: lstm or gru; tokens: tiny, 124m, 350m or 1b",
    )
    image_size: int = Field(
        224, ge=8, description="imagefolder: height and width of the input images in pixels"
    )
    bptt: int = Field(
        200, ge=0, description="seqclass: truncate backpropagation after N words; 0 disables"
    )
    prefetch: int = Field(2, ge=1, description="batches that each worker process loads ahead")
    bad_samples: int = Field(
        0, ge=0, description="skip up to N unreadable samples; one more ends the run (exit 65)"
    )
    out: Path | None = Field(
        None,
        description="run folder, for metrics.jsonl, checkpoints/ and logs/ (default: runs/TASK)",
    )
    resume: _Text = Field(
        "auto",
        description="auto: resume from the newest complete checkpoint; never: start over; a path: "
        "resume from that checkpoint; force or force:PATH: even if other settings made it",
    )
    checkpoint_steps: int = Field(
        100,
        ge=0,
        description="save a checkpoint every N steps; 0: only at the end and when stopped",
    )
    checkpoint_minutes: float = Field(
        0, ge=0, description="also save a checkpoint every N minutes; 0 disables"
    )
    checkpoints: _Text | None = Field(
        None, description="folder or URL (s3://...) for checkpoints (default: OUT/checkpoints)"
    )
    checkpoint_keep: int = Field(3, ge=1, description="number of newest checkpoints to keep")
    checkpoint_keep_every: int = Field(
        0, ge=0, description="keep the first checkpoint of every N steps forever; 0 disables"
    )
    checkpoint_keep_best: int = Field(
        0,
        ge=0,
        description="number of best checkpoints to keep; if above 0, every evaluation saves one",
    )
    checkpoint_timeout: int = Field(
        1800, ge=1, description="time limit in seconds to write a checkpoint (exit 71)"
    )
    eval_steps: int | None = Field(
        None, ge=0, description="evaluate every N steps; 0: only at the end (default: every epoch)"
    )
    dry_run: int | None = Field(
        None,
        ge=1,
        description="world size of a dry run: it prints the memory of each rank and does not train",
    )
    device_memory: float | None = Field(
        None,
        gt=0,
        description="memory of a device in GiB, for mode auto and the dry run (default: this GPU's)",
    )
    ledger: bool = Field(
        False,
        description="record the samples of every step; check them with python -m trainer.engine.ledger",
    )
    log: Literal["auto", "rich", "json"] = Field(
        "auto", description="rich: progress bar; json: one line per event; auto: rich on a terminal"
    )
    log_steps: int = Field(10, ge=1, description="write a step event every N steps")
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="port on every node that serves metrics to Prometheus"
    )
    tensorboard: bool = Field(False, description="write TensorBoard files to OUT/tensorboard")
    tracker: Literal["none", "mlflow", "wandb", "trackio"] = Field(
        "none",
        description="send the metrics to mlflow, wandb or trackio; the image needs its package",
    )
    profile: Annotated[str, AfterValidator(_steps)] = Field(
        "",
        description="profile the steps FIRST:LAST on every rank; the files in OUT/profile open in "
        "Perfetto",
    )
    preflight: Literal["auto", "off"] = Field(
        "auto",
        description="auto: test machines, devices and links before training (exit 71); or off",
    )
    devices: int = Field(
        0, ge=0, description="accelerators that preflight requires on each machine"
    )
    rendezvous_timeout: int = Field(
        600, ge=1, description="seconds to wait for node 0 and for all other nodes (exit 69)"
    )
    last_call: int = Field(
        5,
        ge=0,
        description="elastic: seconds that the first round waits for one more node",
    )
    peer_timeout: float = Field(
        3,
        ge=0.5,
        description="seconds without a heartbeat after which a node counts as lost (exit 69; elastic: "
        "continue without it)",
    )
    peer_losses: int = Field(
        10,
        ge=0,
        description="peer losses in a row, without a new checkpoint, that end with 69; the next ends "
        "with 70",
    )
    collective_timeout: int = Field(
        300, ge=1, description="seconds to wait for a collective before the rank ends (exit 69)"
    )
    health: Path | None = Field(
        None,
        description="local folder of the liveness files that python -m trainer.health reads; set in the "
        "image and in pods",
    )
    health_timeout: int | None = Field(
        None,
        ge=0,
        description="seconds without progress after which the liveness probe fails; 0: never (default: "
        "twice the longest timeout)",
    )

    @property
    def own(self) -> dict[str, str]:
        """The texts of the task's own settings: TRAINER_TASK_LAYERS=4 is {"task_layers": "4"}."""
        return dict(self.model_extra or {})

    @property
    def run_folder(self) -> Path:
        """`out`, or its default."""
        return self.out or Path("runs") / self.task.replace(":", ".")

    @property
    def health_limit(self) -> int:
        """`health_timeout`, or by default twice the longest timeout of a wait; 0: never."""
        return 2 * self.longest_wait if self.health_timeout is None else self.health_timeout

    @property
    def longest_wait(self) -> int:
        """Seconds after which every wait of a rank ends with a fault that names its cause."""
        return max(self.rendezvous_timeout, self.collective_timeout, self.checkpoint_timeout)
