"""The trainer's settings: one typed model for environment, job file, README and --help.

Imports neither torch nor kubernetes. How it is read from TRAINER_*: `trainer/config/environment.py`.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

_Text = Annotated[str, StringConstraints(min_length=1)]


class Settings(BaseModel):
    """What a run does. Every field's description is its line in the README and in --help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True
    )

    task: _Text = Field(
        "digits", description="what to train: a built-in task or package.module:Class"
    )
    mode: _Text = Field("auto", description="how to train it in parallel: auto, or a mode's name")
    mesh: str = Field(
        "", description="sizes of the mesh, e.g. dp_replicate=4; the product is the world size"
    )
    epochs: int = Field(30, ge=0, description="passes over the training data")
    steps: int | None = Field(None, ge=0, description="optimiser steps; overrides epochs")
    global_batch: int = Field(32, ge=1, description="samples per optimiser step, over all ranks")
    micro_batch: int | None = Field(
        None,
        ge=1,
        description="samples per forward pass and rank; the rest is accumulated (default: all at once)",
    )
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="sgd or adamw")
    lr: float = Field(0.03, gt=0, allow_inf_nan=False, description="peak learning rate")
    lr_scale: Literal["none", "linear", "sqrt"] = Field(
        "none",
        description="how lr grows with global_batch over lr_base_batch: none, linear or sqrt",
    )
    lr_base_batch: int = Field(32, ge=1, description="samples per step that lr was found for")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd")
    weight_decay: float = Field(
        0.005, ge=0, allow_inf_nan=False, description="weight decay of either optimiser"
    )
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="learning rate after the warm-up: cosine (to zero) or constant"
    )
    warmup_steps: int = Field(20, ge=0, description="steps of linear warm-up")
    clip_norm: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="largest global gradient norm; 0 does not clip"
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp64"] = Field(
        "fp32",
        description="fp32; tf32 (GPUs from Ampere on); bf16 or fp16 autocast, the latter with loss "
        "scaling; or fp64, in which modes can be compared exactly",
    )
    activation_checkpointing: bool = Field(
        False, description="compute blocks anew in the backward pass, to hold less in memory"
    )
    compile: bool = Field(False, description="torch.compile, block by block")
    channels_last: bool = Field(
        False, description="images with their channels innermost, as GPUs like them"
    )
    ema_decay: float = Field(
        0, ge=0, lt=1, description="evaluate a moving average of the weights, e.g. 0.999; 0: none"
    )
    fingerprint_steps: int = Field(
        0, ge=0, description="steps between two comparisons of the replicas, bit by bit; 0: none"
    )
    nonfinite_allowance: int = Field(
        5,
        ge=1,
        description="steps in a row without a finite loss and gradient that are skipped before the run "
        "goes back to a checkpoint; exit 72 when it comes to the same again",
    )
    bucket_mb: float = Field(
        25, gt=0, allow_inf_nan=False, description="ddp: megabytes of gradients sent at a time"
    )
    static_graph: bool = Field(
        False, description="ddp: every step uses the same parameters, so less is looked up"
    )
    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = Field(
        "none",
        description="ddp: how gradients are compressed on their way: none, fp16, bf16, powersgd",
    )
    sync_batchnorm: bool = Field(
        False, description="BatchNorm over the samples of all ranks instead of each rank's own"
    )
    processes: int | None = Field(
        None, ge=1, description="hogwild: processes (default: as many as this one may have threads)"
    )
    local_steps: int = Field(8, ge=1, description="localsgd: steps between two averagings")
    local_state: Literal["average", "reset"] = Field(
        "average",
        description="localsgd: what becomes of momenta with the weights: average or reset",
    )
    outer_lr: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="localsgd: rate of the outer optimiser (DiLoCo: 0.7); unset: plain averages",
    )
    outer_momentum: float = Field(
        0.9, ge=0, lt=1, description="localsgd: Nesterov momentum of the outer optimiser"
    )
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved-1f1b", "interleaved-zb", "zbv"] = (
        Field(
            "1f1b",
            description="pp: order of the micro-batches' passes: gpipe, 1f1b, interleaved-1f1b, "
            "interleaved-zb or zbv",
        )
    )
    stages: int | None = Field(
        None,
        ge=1,
        description="mp, pp: parts the model is cut into (default: mp, one a GPU or 2 on the CPU; "
        "pp, what the schedule wants)",
    )
    reshard: bool = Field(
        True, description="fsdp, hsdp: free the gathered parameters between forward and backward"
    )
    sequence_parallel: bool = Field(
        True, description="tp: norms and the stream between layers on shares of the sequence"
    )
    loss_parallel: bool = Field(
        False, description="tp: the loss on shares of the classes, whose logits are never gathered"
    )
    cpu_offload: bool = Field(
        False, description="fsdp, hsdp: keep the shards in host memory between their uses"
    )
    seed: int = Field(
        0, ge=0, lt=2**32, description="decides initial weights, data order and what layers draw"
    )
    data: Path | None = Field(
        None, description="folder that holds the task's data, if it needs one"
    )
    workers: int = Field(
        0, ge=0, description="DataLoader processes per rank for data that is not held in memory"
    )
    download: bool = Field(False, description="download a task's data set where it is missing")
    model: str | None = Field(
        None,
        description="network of a task that offers several: imagefolder and cifar10 any "
        "classification model of torchvision, seqclass lstm or gru",
    )
    image_size: int = Field(
        224, ge=8, description="imagefolder: pixels of the square that the network sees"
    )
    bptt: int = Field(
        200, ge=0, description="seqclass: words after which the gradient is cut; 0: never"
    )
    prefetch: int = Field(2, ge=1, description="batches that each such process reads ahead")
    bad_samples: int = Field(
        0, ge=0, description="samples that may be unreadable and are left out; one more is exit 65"
    )
    out: Path | None = Field(
        None, description="run folder: metrics.jsonl, checkpoints/, logs/ (default: runs/TASK)"
    )
    resume: _Text = Field(
        "auto",
        description="auto: go on from the newest complete checkpoint; never: start over; "
        "or a checkpoint's path",
    )
    checkpoint_steps: int = Field(
        100, ge=0, description="steps between checkpoints; 0: only at the end and when stopped"
    )
    checkpoint_minutes: float = Field(
        0,
        ge=0,
        allow_inf_nan=False,
        description="minutes between checkpoints; 0: steps decide alone",
    )
    checkpoints: _Text | None = Field(
        None, description="folder or URL (s3://...) of the checkpoints (default: OUT/checkpoints)"
    )
    checkpoint_keep: int = Field(3, ge=1, description="newest checkpoints that are kept")
    checkpoint_keep_every: int = Field(
        0, ge=0, description="of this many steps the first checkpoint is kept for good; 0: none is"
    )
    checkpoint_keep_best: int = Field(
        0, ge=0, description="best checkpoints that are kept; above 0, each evaluation saves one"
    )
    checkpoint_timeout: int = Field(
        1800, ge=1, description="seconds a checkpoint may take to be written (exit 71)"
    )
    eval_steps: int | None = Field(
        None, ge=0, description="steps between evaluations; 0: only at the end (default: an epoch)"
    )
    dry_run: int | None = Field(
        None, ge=1, description="ranks to build without training, to see what each would need"
    )
    device_memory: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="GiB of a device, for auto and the dry run (default: what a GPU says)",
    )
    ledger: bool = Field(
        False,
        description="write down the samples of every step; python -m trainer.engine.ledger checks",
    )
    log: Literal["auto", "rich", "json"] = Field(
        "auto", description="rich: progress bar; json: a line an event; auto: rich on a terminal"
    )
    log_steps: int = Field(10, ge=1, description="steps between two step events")
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="port of every node that serves figures to Prometheus"
    )
    tensorboard: bool = Field(False, description="write curves for TensorBoard to OUT/tensorboard")
    preflight: Literal["auto", "off"] = Field(
        "auto",
        description="auto: look over machines, devices and links first (exit 71); or off",
    )
    devices: int = Field(
        0, ge=0, description="accelerators each machine must have; else preflight refuses it"
    )
    rendezvous_timeout: int = Field(
        600, ge=1, description="seconds to wait for the master and for all nodes"
    )
    last_call: int = Field(
        5, ge=0, description="elastic: seconds to wait at the start for more than the fewest nodes"
    )
    peer_timeout: float = Field(
        3,
        ge=0.5,
        allow_inf_nan=False,
        description="seconds of silence after which another node is lost (exit 69; elastic: go on "
        "without it)",
    )
    peer_losses: int = Field(
        10,
        ge=0,
        description="peers lost in a row without a new checkpoint that are not counted as failures; "
        "one more is exit 70 instead of 69",
    )
    collective_timeout: int = Field(
        300, ge=1, description="seconds a collective may take before the rank gives up (exit 69)"
    )
    health: Path | None = Field(
        None,
        description="folder of this machine's own for signs of life, which python -m trainer.health "
        "judges; the image and the pods have one",
    )
    health_timeout: int | None = Field(
        None,
        ge=0,
        description="seconds without a sign of life after which a node counts as stuck; 0: never "
        "(default: twice the longest of the time-outs of rendezvous, collective and checkpoint)",
    )

    @property
    def run_folder(self) -> Path:
        """`out`, or where a run's files go when nothing is set."""
        return self.out or Path("runs") / self.task.replace(":", ".")

    @property
    def health_limit(self) -> int:
        """Seconds without a sign of life after which a node counts as stuck; 0: never."""
        return 2 * self.longest_wait if self.health_timeout is None else self.health_timeout

    @property
    def longest_wait(self) -> int:
        """Seconds that a rank may wait before it ends by itself, and says why."""
        return max(self.rendezvous_timeout, self.collective_timeout, self.checkpoint_timeout)
