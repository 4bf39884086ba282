"""What each reason means and what mends it, in a sentence or two."""

from __future__ import annotations

from gpuload.request import Reason

EXPLANATIONS: dict[Reason, str] = {
    Reason.NO_LIBRARY: (
        "No library that reads straight into GPU memory was found. On AMD, install gpuload[rocm] and ROCm's hipFile "
        "(libhipfile.so, below ROCM_PATH); on NVIDIA, gpuload[cuda13] or gpuload[cuda12]."
    ),
    Reason.NO_DRIVER: (
        "The library is installed but what it stands on is not: on AMD a HIP runtime that has hipAmdFileRead, and the "
        "amdgpu driver with peer-to-peer DMA; on NVIDIA nvidia-fs or a kernel with PCI_P2PDMA. Install them; the "
        "driver of a container is that of its host."
    ),
    Reason.NO_DEVICE: (
        "No usable GPU was found, so the bytes went to host memory. "
        "On a machine with a GPU, check the driver, and that the container or the job was given the device."
    ),
    Reason.FORCED_OFF: (
        "Another backend was asked for by name (`--backend`, `backend` in gpuload.config, GPULOAD_BACKEND), or this "
        "one is switched off (sysctl kernel.io_uring_disabled, HIPFILE_FORCE_COMPAT_MODE). Undo that to use it again."
    ),
    Reason.NOT_DEVICE_MEMORY: (
        "The destination is host memory, and the fastpath writes to device memory only. "
        'Open with device="auto" or "cuda:0", or give an `out` array that lives on the device.'
    ),
    Reason.FILE_SYSTEM: (
        "The file system cannot read straight into device memory: only xfs and ext4 can, so not tmpfs, overlay or a "
        "network mount. Copy the store to a local xfs or ext4 file system."
    ),
    Reason.EXT4_JOURNAL_MODE: (
        "This ext4 file system does not journal in the ordered mode that direct reads need. "
        "Mount it with data=ordered, which is the default."
    ),
    Reason.BLOCK_LAYER: (
        "Something lies between the file system and the drive: software RAID, encryption, multipath or a loop device. "
        "Put the store on a partition or an LVM volume directly on NVMe."
    ),
    Reason.ODIRECT_REFUSED: (
        "The file could not be opened for unbuffered reads (O_DIRECT), as on tmpfs and some FUSE file systems. "
        "Move it to a file system that allows them."
    ),
    Reason.UNALIGNED_OFFSET: (
        "The range does not start on a multiple of the drive's block, usually 4096 bytes. "
        "`gpuload pack` writes a store in which every chunk does."
    ),
    Reason.UNALIGNED_SIZE: (
        "The range's length is not a multiple of the drive's block, usually 4096 bytes. "
        "`gpuload pack` writes a store in which every file's is one."
    ),
    Reason.UNALIGNED_MEMORY: (
        "The destination does not start at an address the drive can write to. "
        "Read into an array of its own, or into a view that starts on a multiple of 4096 bytes."
    ),
    Reason.TAIL: (
        "The last bytes of a file, less than one block, cannot go by the fastpath. "
        "That costs little with large chunks; `gpuload pack` writes a store without tails."
    ),
    Reason.BELOW_THRESHOLD: (
        "The range is so short that the fallback is faster. Larger chunks, or selections that take neighbouring chunks "
        "together, make the fastpath worth its cost."
    ),
    Reason.P2P_ROUTE: (
        "GPU and drive cannot reach each other over PCIe: no peer-to-peer route was granted. "
        "Use a drive under the same root complex, and check the IOMMU and ACS settings of the machine."
    ),
    Reason.VIRTUAL_FUNCTION: (
        "The GPU is a virtual function (SR-IOV) of a shared one, and direct reads need the physical function. "
        "Use a machine or an instance that has the whole GPU."
    ),
    Reason.DRIVER_ERROR: (
        "The driver, or the kernel's interface, reported an error that no other reason describes, so another backend "
        "read the bytes. Read with this backend alone (`--backend`) to see the error."
    ),
    Reason.FD_LIMIT: (
        "The process may not open the further descriptors this path needs for each file. "
        "Raise the limit (`ulimit -n`), or write fewer and larger files: shards."
    ),
    Reason.MEMLOCK: (
        "The process may not lock enough memory to register its buffers with the kernel. "
        "Raise the limit (`ulimit -l`, or LimitMEMLOCK= in a systemd unit)."
    ),
    Reason.SECCOMP: (
        "System calls of this path are forbidden here, by the container's seccomp profile or by the system. "
        "Allow io_uring_setup, io_uring_enter and io_uring_register, and set kernel.io_uring_disabled to 0."
    ),
    Reason.KERNEL_TOO_OLD: (
        "The kernel lacks a feature this path needs, and a newer one has it. "
        "Read with this backend alone (`--backend`) to see which feature that is."
    ),
    Reason.MISSING_CHUNK: (
        "The chunk has no file, so its values are the fill value and nothing was read. "
        "That is how zarr stores empty chunks: there is nothing to mend."
    ),
    Reason.HOST_CODEC: (
        "The chunk is compressed, or otherwise encoded, and was decoded on the CPU, so its bytes went to host memory "
        "first. gpuload decodes on the CPU only, for now; `gpuload pack` writes a store without codecs."
    ),
    Reason.HOST_DTYPE: (
        "The data type has no form on the device, such as strings, structured types or datetime64, "
        "so the array was read on the host. Store dates as integers with units to read them on the device."
    ),
    Reason.NOT_LOCAL: ("The store is not made of local files, and handles need files. Copy it to a local disk first."),
    Reason.AFTER_FORK: (
        "The process is a forked child, where no GPU runtime works. "
        'Start workers with "spawn" or "forkserver" instead of "fork".'
    ),
    Reason.UNVERIFIED: (
        "The driver served the read, but its own detour through the host was not switched off, so nothing proves a "
        "direct transfer. Let gpuload open the driver first, and leave HIPFILE_ALLOW_COMPAT_MODE or "
        "CUFILE_ALLOW_COMPAT_MODE unset."
    ),
    Reason.ZARR_PIPELINE: (
        "zarr-python's own codec pipeline did it: gpuload's leaves writing to it, and selections, chunk keys and "
        "destinations that it cannot plan as a whole. gpuload.open reads such an array, too."
    ),
}
