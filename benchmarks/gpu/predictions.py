"""What was expected of each part before it ran; a record keeps it beside what was measured."""

from __future__ import annotations

PREDICTIONS: dict[str, dict[str, str]] = {
    "why": {
        "device copies hot, 10 MB, process's CPU": "75 to 90 us a batch, never sleeps",
        "paced as the GPU ring, 10 MB": "200 to 350 us a batch, 1 sleep a batch",
        "GPU ring, 10 MB": "250 to 400 us a batch at 1,000 to 1,500 batches/s; 1 sleep a batch",
        "host ring, 10 MB": "300 to 500 us a batch at 1,000 to 1,700 batches/s",
        "beyond the paced control, GPU ring, 10 MB": "40 to 100 us a batch",
        "beyond the paced control, GPU ring, 64 KB": "30 to 100 us a batch",
        "GPU memory, 10 MB": "device copies 2.1 blocks, GPU ring 2.1, host ring 3.1",
        "event wait": "50 to 100 us of CPU, 1 sleep",
        "socket wake": "25 to 60 us of CPU, 1 sleep",
        "memcpy into a ring": "6 GB/s by 1 thread, 11 by 2, 17 to 18 by 4, 16 to 18 by 8",
        "into a GPU's ring": "5 GB/s by 1 thread, 13 to 16 by 4",
        "to the GPU": "small pages 45 to 52 GB/s, huge 53 to 55, cudaHostAlloc 54 to 55: huge gains less than 10%",
    },
    "mps": {
        "feeder among the clients": "maps the GPU's ring; B goes on, every byte right; C joins",
        "feeder outside": "maps the GPU's ring too; each batch waits a time slice; every byte right",
    },
    "share": {
        "4 cores, K=1, GPU ring against separate": "1.0 to 1.06 (model of CPU-ms: 1.06)",
        "4 cores, K=4, GPU ring against separate": "3.54 by the model; 3.3 where blocks ready before do not count",
        "4 cores, K=4, GPU ring against TensorSocket": "1.19 by the model; 1.12",
        "4 cores, K=4, separate": "4.2 to 4.6 batches/s a trainer; GPU ring 14.5 to 15.5",
        "16 cores, K=4, GPU ring against separate": "1.93 in time slices; with MPS 2.3 to 2.7; CPU-bound 3.54",
    },
    "split": {
        "2 cores, gpu auto against none": "3.5 to 4.3 (the spike: 4.3, its GPU side in a loop of its own)",
        "4 cores": "3 to 4.2 (the spike: 4.2)",
        "16 cores": "1.3 to 1.9 (the spike: 1.9)",
        "CPU-seconds a 1,000 images at 2 cores, gpu auto": "0.35 to 0.5",
        "part that the GPU does at 2, 4, 16 cores": "0.85, 0.75, 0.45",
        "images/s of the GPU's side in batches of 128": "5,500 to 8,000",
        "a training that keeps the GPU busy loses": "5 to 10% (the spike: 10%)",
        "pixels": "equal at 4:4:4 and in grey; at 4:2:0 mean 0.5, p99.9 16, largest 68 before crops",
    },
}
