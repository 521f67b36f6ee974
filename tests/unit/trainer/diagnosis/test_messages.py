"""The table of causes knows messages of libraries that are not installed, from their sources."""

import pytest

from trainer.diagnosis.causes import find

# By the place of the text: the cause and the text.
MESSAGES: dict[str, list[tuple[str, str]]] = {
    "torch/serialization.py": [
        (
            "map location",
            (
                "RuntimeError: Attempting to deserialize object on a CUDA device but "
                "torch.cuda.is_available() is False."
            ),
        ),
        ("checkpoint", "RuntimeError: Invalid magic number; corrupt file?"),
    ],
    "c10/cuda/CUDAFunctions.cpp, CUDAHooks.cpp; torch/distributed/distributed_c10d.py": [
        ("no devices", "RuntimeError: No CUDA GPUs are available"),
        (
            "no devices",
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        ),
        (
            "missing ranks",
            (
                "DistStoreError: Timed out initializing process group in store based barrier on rank 0, "
                "for key: store_based_barrier_key:1 (world_size=2, num_workers_joined=1, "
                "timeout=0:00:05 error=timed out)"
            ),
        ),
    ],
    "torch/distributed/checkpoint/default_planner.py": [
        ("checkpoint", "RuntimeError: Missing key in checkpoint state_dict: model.2.weight."),
    ],
    "c10/cuda/CUDAException.cpp, cudaGetErrorString": [
        ("device build", "CUDA error: no kernel image is available for execution on the device"),
        (
            "device build",
            "CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        ),
        ("no devices", "CUDA error: all CUDA-capable devices are busy or unavailable"),
        ("device fault", "CUDA error: unspecified launch failure"),
    ],
    "torch/utils/cpp_extension.py": [
        (
            "device build",
            (
                "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to "
                "compile PyTorch (12.1)."
            ),
        ),
        ("compiler", "RuntimeError: Error building extension 'fused_adam'"),
    ],
    "flash_attn/csrc/flash_attn/flash_api.cpp": [
        ("device build", "RuntimeError: FlashAttention only supports Ampere GPUs or newer."),
    ],
    "nccl/src/init.cc": [
        (
            "one GPU twice",
            (
                "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, ncclInvalidUsage: "
                "Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000"
            ),
        ),
    ],
    "nccl/src/misc/ibvwrap.cc": [
        (
            "NCCL",
            (
                "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, "
                "ncclSystemError: Last error: Call to ibv_modify_qp failed with error Invalid argument"
            ),
        ),
    ],
    "nccl/src/misc/shmutils.cc": [
        (
            "shared memory",
            (
                "DistBackendError: ncclSystemError: Last error: Error while creating shared memory "
                "segment /dev/shm/nccl-a1 (size 9637888)"
            ),
        ),
    ],
    "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp": [
        ("lost peer", "DistBackendError: NCCL communicator was aborted on rank 1."),
        ("hang", "Some NCCL operations have failed or timed out. Due to the asynchronous nature"),
    ],
    "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp": [
        ("rendezvous", "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error"),
        ("collectives", "ValueError: ProcessGroupGloo::allgather: incorrect output list size 1."),
        ("process group", "RuntimeError: ProcessGroupNCCL does not support gather"),
    ],
    "torch/csrc/distributed/c10d/reducer.cpp": [
        ("collectives", "RuntimeError: DDP expects same model across all ranks, but Rank 0 has"),
        (
            "collectives",
            (
                "RuntimeError: [1]: params[0] in this process with sizes [10, 9] appears not to match "
                "sizes of the same param in process 0."
            ),
        ),
        ("unused parameters", "RuntimeError: Your training graph has changed in this iteration"),
    ],
    "aten/src/ATen/MapAllocator.cpp": [
        (
            "shared memory",
            "RuntimeError: unable to write to file </torch_1_2>: No space left on device",
        ),
        (
            "too many files",
            "RuntimeError: unable to open shared memory object: Too many open files",
        ),
    ],
    "torch/distributed/fsdp/_flat_param.py": [
        (
            "sharded model",
            "ValueError: Must flatten tensors with uniform dtype but got torch.float16",
        ),
    ],
    "torch/amp/grad_scaler.py": [
        ("autograd", "ValueError: Attempting to unscale FP16 gradients."),
        ("autograd", "RuntimeError: unscale_() has already been called on this optimizer"),
    ],
    "libstdc++": [("host memory", "std::bad_alloc")],
    "cv2, modules/imgproc/src/color.cpp": [
        ("bad samples", "cv2.error: (-215:Assertion failed) !_src.empty() in function 'cvtColor'"),
    ],
    "PIL/PngImagePlugin.py": [("bad samples", "SyntaxError: broken PNG file (chunk b'\\x00')")],
    "huggingface_hub/errors.py, utils/_http.py": [
        ("download", "LocalEntryNotFoundError: Cannot find the requested files in the disk cache"),
        (
            "download",
            "HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://hub/api",
        ),
        ("credentials", "LocalTokenNotFoundError: Token is required (`token=True`), but no token"),
    ],
    "datasets/load.py": [
        ("download", "DatasetNotFoundError: Dataset 'a/b' doesn't exist on the Hub or cannot"),
    ],
    "transformers/modeling_utils.py, image_processing_utils.py, models/auto": [
        (
            "file",
            "OSError: Error no file named model.safetensors found in directory /models/llama.",
        ),
        ("file", "OSError: /models/llama does not appear to have a file named config.json."),
        (
            "package",
            (
                "ValueError: The checkpoint you are trying to load has model type `q` but "
                "Transformers does not recognize this architecture."
            ),
        ),
        (
            "package",
            "ImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=0.26.0`",
        ),
    ],
    "accelerate/utils/operations.py": [
        (
            "collectives",
            (
                "DistributedOperationException: Cannot apply desired operation due to shape "
                "mismatches. All shapes across devices must be valid."
            ),
        ),
    ],
    "lightning/pytorch/accelerators, lightning/fabric/utilities/device_parser.py": [
        ("no devices", "MisconfigurationException: No supported gpu backend found!"),
        (
            "no devices",
            (
                "MisconfigurationException: You requested gpu: [0, 1]\n But your machine only "
                "has: [0]"
            ),
        ),
    ],
    "torchtitan/distributed/parallel_dims.py": [
        (
            "batch or mesh",
            "AssertionError: Invalid parallel dims: dp_shard(4) * tp(1) != WORLD_SIZE(2)",
        ),
    ],
    "omegaconf/errors.py, hydra/errors.py, yacs/config.py": [
        ("setting", "omegaconf.errors.ConfigAttributeError: Key 'batchsize' is not in struct"),
        ("setting", "hydra.errors.MissingConfigException: Cannot find primary config 'train'."),
        ("setting", "KeyError: 'Non-existent config key: MODEL.DEPTHS'"),
    ],
    "detectron2/engine/train_loop.py, fairseq/optim/fp16_optimizer.py": [
        ("diverged", "FloatingPointError: Loss became infinite or NaN at iteration=12!"),
        (
            "diverged",
            "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably",
        ),
    ],
    "deepspeed/runtime/fp16/loss_scaler.py": [
        ("diverged", "Exception: Current loss scale already at minimum - cannot decrease scale"),
    ],
    "wandb/errors/errors.py, botocore/exceptions.py": [
        ("download", "wandb.errors.CommError: Run initialization has timed out after 90.0 sec."),
        (
            "download",
            "EndpointConnectionError: Could not connect to the endpoint URL: http://minio:9000",
        ),
        (
            "credentials",
            "ClientError: An error occurred (403) when calling the HeadObject operation",
        ),
    ],
    "requests/exceptions.py, urllib3": [
        (
            "download",
            "ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'reset'))",
        ),
    ],
    "click, absl": [
        ("arguments", "Error: Invalid value for '--epochs': 'ten' is not a valid integer."),
        ("arguments", "UnrecognizedFlagError: Unknown command line flag 'lr'"),
    ],
    "numpy/__init__.py, aten/src/ATen/MapAllocator.cpp": [
        ("package", "AttributeError: module 'numpy' has no attribute 'float'. `np.float` was"),
        (
            "shared memory",
            (
                "RuntimeError: unable to allocate shared memory(shm) for file </torch_6_3_0>: No space "
                "left on device (28)"
            ),
        ),
    ],
    "what muster refuses": [
        ("refused", "rank 1: TRAINER_STEPS 9, rank 0 has 4; all nodes need the same (exit 64)"),
        ("refused", "model Net: its chain() returns no list of modules (exit 64)"),
        ("refused", "/data/meta.json: not a JSON object: Expecting value (exit 65)"),
        ("raised", "ended with its own code 3 (exit 65)"),
    ],
    "what programs say of themselves": [
        ("raised", "AttributeError: 'Net' object has no attribute 'module'"),
        ("data", "RuntimeError: no images found in /data"),
        ("data", "AssertionError: train set is empty"),
        ("batch or mesh", "AssertionError: batch size 10 must be divisible by 4"),
        ("diverged", "AssertionError: NaN detected in gradients"),
        ("file", "ValueError: /data/train does not exist"),
        ("raised", "ValueError: unknown loss 'infonce'"),
        ("raised", "KeyError: 'preempted'"),
        ("raised", "AssertionError: loss exploded to 1e12"),
        ("raised", "TypeError: forward() missing 1 required positional argument: 'tensor'"),
        ("raised", "ValueError: no improvement: no sample weights given"),
    ],
}


@pytest.mark.parametrize(
    ("cause", "text"), [one for rows in MESSAGES.values() for one in rows], ids=str
)
def test_a_message_has_its_cause(cause: str, text: str) -> None:
    found = find(" ".join(text.split()))
    assert found is not None
    assert found.name == cause
