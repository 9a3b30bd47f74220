"""Body hashes of upstream functions: target -> hash -> the releases that have it.

Written by ``python -m vllm_tpu_async_patch.probe --record``.
"""

from __future__ import annotations

HASHES: dict[str, dict[str, str]] = {
    "tpu_inference.executors.ray_distributed_executor:RayDistributedExecutor._execute_dag": {
        "8f6890f0ddc7536d": "0.18.0",
        "e1c9c1c6875eb053": "0.19.0",
        "73f30c650ca709be": "0.20.0 0.21.0 0.22.1 0.23.0 0.24.0 0.25.0 0.26.0 0.27.0 0.28.0 "
                            "0.29.0 0.30.0 0.31.0 0.32.0",
    },
    "tpu_inference.executors.ray_distributed_executor:RayDistributedExecutor._init_executor": {
        "f186dd4acb5f150e": "0.12.0 0.13.2 0.13.3",
        "230bf7dc8b284bc9": "0.18.0 0.19.0 0.20.0 0.21.0 0.22.1 0.23.0 0.24.0 0.25.0 0.26.0 "
                            "0.27.0 0.28.0 0.29.0",
        "94f655faa31f3ddd": "0.30.0 0.31.0 0.32.0",
    },
    "tpu_inference.executors.ray_distributed_executor:RayDistributedExecutor._init_workers_ray": {
        "98e43d743b99f9f2": "0.12.0 0.13.2 0.13.3",
        "146705c65b7b485c": "0.18.0",
        "9c9f3db7a4b07c01": "0.19.0 0.20.0 0.21.0 0.22.1 0.23.0",
        "c721167a9ec592dd": "0.24.0 0.25.0 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0",
    },
    "tpu_inference.executors.ray_distributed_executor:RayDistributedExecutor.supports_async_scheduling": {
        "426fdf47e1d6fc92": "0.18.0 0.19.0 0.20.0 0.21.0 0.22.1 0.23.0 0.24.0 0.25.0 0.26.0 "
                            "0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0",
    },
    "tpu_inference.executors.ray_distributed_executor:RayWorkerWrapper.execute_model_ray": {
        "21d78589e14e0c33": "0.18.0 0.19.0 0.20.0 0.21.0 0.22.1 0.23.0 0.24.0 0.25.0 0.26.0 "
                            "0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0",
    },
    "tpu_inference.executors.ray_distributed_executor:RayWorkerWrapper.get_execute_model_output": {
        "d91eb72a464117a4": "0.18.0 0.19.0 0.20.0 0.21.0 0.22.1 0.23.0 0.24.0 0.25.0 0.26.0 "
                            "0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0",
    },
    "tpu_inference.platforms.tpu_platform:TpuPlatform.check_and_update_config": {
        "f47d896c96b362e8": "0.12.0",
        "b24773936556706f": "0.13.2 0.13.3",
        "48ac5633c4ae1458": "0.18.0",
        "b7c254ee677ec5a7": "0.19.0",
        "a79c9f895dbbec8a": "0.20.0",
        "969fb1138bd6e472": "0.21.0",
        "4e29cd80b076449e": "0.22.1",
        "ce07f9ab7d3da2ca": "0.23.0",
        "c161808b5bcb4feb": "0.24.0",
        "d75aabb30b22e6d4": "0.25.0",
        "01c6529fbe40dc1f": "0.26.0",
        "be8dc88a157a1160": "0.27.0 0.28.0",
        "7b708457c527afa5": "0.29.0",
        "34c48d3e8096cdd4": "0.30.0",
        "aabe7098609e0bb0": "0.31.0",
        "f268345728d8792f": "0.32.0",
    },
    "tpu_inference.runner.tpu_runner:TPUModelRunner._execute_model": {
        "f8a900e018df88d4": "0.12.0 0.13.2 0.13.3",
        "53eb13e5beff6642": "0.18.0 0.19.0",
        "946ee26a7512b3ac": "0.20.0",
        "d6d4cbfd7337e23b": "0.21.0",
        "5f37ea82800f3661": "0.22.1",
        "49e9362e4a588a98": "0.23.0 0.24.0",
        "05756787ca1aa972": "0.25.0",
        "bd3139fed00d5f73": "0.26.0 0.27.0 0.28.0",
        "5f25fa6c67aba5f8": "0.29.0",
        "124e710c793713f0": "0.30.0 0.31.0 0.32.0",
    },
    "tpu_inference.runner.tpu_runner:TPUModelRunner._modify_prev_results": {
        "f3b620bb57adfb5d": "0.12.0 0.13.2 0.13.3 0.18.0 0.19.0 0.20.0",
        "21007a58292741c3": "0.21.0 0.22.1",
        "869921af3998b62f": "0.23.0 0.24.0 0.25.0",
        "cabc6775258e8624": "0.26.0 0.27.0",
        "245e2cef8c51645a": "0.28.0 0.29.0",
        "144ecbd2dae4f41a": "0.30.0",
        "89b86998615b4df1": "0.31.0 0.32.0",
    },
    "tpu_inference.runner.tpu_runner:TPUModelRunner.execute_model": {
        "5cfdc35a82c8098c": "0.12.0 0.13.2 0.13.3",
        "06abab69109ec5dd": "0.18.0 0.19.0 0.20.0 0.21.0",
        "6845149c650e8eee": "0.22.1 0.23.0 0.24.0 0.25.0 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 "
                            "0.31.0 0.32.0",
    },
    "tpu_inference.runner.tpu_runner:TPUModelRunner.sample_tokens": {
        "13f852529671cb4c": "0.12.0 0.13.2 0.13.3",
        "c53383ad3ecdf558": "0.18.0 0.19.0",
        "1850bb3e2b0a9062": "0.20.0 0.21.0",
        "7b491154af956c1f": "0.22.1",
        "7804a7138223eeae": "0.23.0 0.24.0 0.25.0 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 "
                            "0.32.0",
    },
    "tpu_inference.worker.tpu_worker:TPUWorker.__init__": {
        "56c78cb9971ea9b8": "0.12.0",
        "5c985fb878f4518a": "0.13.2 0.13.3",
        "76666fad2a807d06": "0.18.0 0.19.0 0.20.0 0.21.0 0.22.1 0.23.0",
        "0d554b11e733c492": "0.24.0",
        "8e258e5a9bf2a5b9": "0.25.0 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0",
    },
    "vllm.config.vllm:VllmConfig.__post_init__": {
        "f37b5febbd35cbf2": "0.12.0",
        "ff05ecbcce5b1cc9": "0.13.2 0.13.3",
        "39a0fd4d1e06834e": "0.14.0 0.14.1",
        "673380cf3d86fde5": "0.15.0 0.15.1",
        "ea5c50f8ee7d82de": "0.16.0",
        "f0008697896ef4bb": "0.17.0 0.17.1",
        "fe32c638e37abfeb": "0.18.0",
        "00e4cf86c58e1f27": "0.19.0",
        "93559402b1c56fa1": "0.20.0",
        "e5c1b9687d0a9b99": "0.21.0",
        "8f85f808280a62d3": "0.22.0",
        "57819227dbc471bd": "0.23.0",
        "7654459b0e0a30c7": "0.24.0",
        "dcbcbffdf60b113b": "0.25.0",
        "fb921b3be543fb0f": "0.26.0",
        "4bb3f307c13ddaab": "0.27.0",
        "d30882bb57ec4e1a": "0.28.0",
        "3ab8a314ac535470": "0.29.0",
        "b1e849d19593b110": "0.30.0",
        "9071894ee406c588": "0.31.0",
        "e0f4f96f046109d4": "0.32.0",
    },
    "vllm.distributed.kv_transfer.kv_connector.utils:KVOutputAggregator.aggregate": {
        "97151acc2bac5ead": "0.12.0",
        "51b08a186af1fe29": "0.13.2 0.13.3 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1",
        "46d67f5275b41889": "0.18.0 0.19.0 0.20.0 0.21.0 0.22.0",
        "b2b3dcfb7817e80b": "0.23.0 0.24.0 0.25.0 0.26.0 0.27.0 0.28.0 0.29.0",
        "06d2bf78873d3d50": "0.30.0 0.31.0 0.32.0",
    },
    "vllm.v1.executor.abstract:Executor.__init__": {
        "6bfbe3c8b0e48937": "0.12.0 0.13.2 0.13.3 0.14.0 0.14.1 0.15.0 0.15.1",
        "dbd26449deecf4cd": "0.16.0 0.17.0 0.17.1 0.18.0 0.19.0 0.20.0 0.21.0 0.22.0 0.23.0 "
                            "0.24.0 0.25.0 0.26.0 0.27.0",
        "e5ae6020b19327a2": "0.28.0 0.29.0",
        "c77e28700f98c567": "0.30.0 0.31.0 0.32.0",
    },
    "vllm.v1.executor.abstract:Executor.get_class": {
        "6e8afd8b96431e07": "0.12.0 0.13.2 0.13.3 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 "
                            "0.17.1",
        "ac9909013656ad48": "0.18.0 0.19.0 0.20.0 0.21.0 0.22.0 0.23.0 0.24.0 0.25.0 0.26.0 "
                            "0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0",
    },
    "vllm.v1.executor.abstract:Executor.supports_async_scheduling": {
        "2e06d398508c8206": "0.18.0 0.19.0 0.20.0 0.21.0 0.22.0 0.23.0 0.24.0 0.25.0 0.26.0 "
                            "0.27.0 0.28.0 0.29.0",
        "04480294a23ea15f": "0.30.0 0.31.0 0.32.0",
    },
    "vllm.v1.executor.ray_executor:RayDistributedExecutor._compiled_ray_dag": {
        "2615ef35320eef1d": "0.12.0 0.13.2 0.13.3 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 "
                            "0.17.1 0.18.0 0.19.0 0.20.0 0.21.0 0.22.0 0.23.0 0.24.0 0.25.0 "
                            "0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0",
    },
    "vllm.v1.executor.ray_executor:RayDistributedExecutor._execute_dag": {
        "589a28a5d376901c": "0.12.0",
        "a383c9e2f14bc129": "0.13.2 0.13.3 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 "
                            "0.18.0",
        "0ce6fc3b5d1f7106": "0.19.0 0.20.0 0.21.0 0.22.0 0.23.0 0.24.0 0.25.0 0.26.0 0.27.0 "
                            "0.28.0 0.29.0 0.30.0 0.31.0 0.32.0",
    },
    "vllm.v1.executor.ray_executor:RayDistributedExecutor.execute_model": {
        "8d6825f1a243419a": "0.12.0 0.13.2 0.13.3 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 "
                            "0.17.1 0.18.0 0.19.0 0.20.0 0.21.0 0.22.0 0.23.0 0.24.0 0.25.0 "
                            "0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0",
    },
    "vllm.v1.executor.ray_executor:RayDistributedExecutor.sample_tokens": {
        "797d91a74626d0c0": "0.12.0",
        "47d0292250bcf946": "0.13.2 0.13.3 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 "
                            "0.18.0 0.19.0 0.20.0 0.21.0 0.22.0 0.23.0 0.24.0 0.25.0 0.26.0 "
                            "0.27.0 0.28.0 0.29.0",
        "94107c88b2ff2a43": "0.30.0 0.31.0 0.32.0",
    },
    "vllm.v1.executor.ray_utils:RayWorkerWrapper.execute_model_ray": {
        "cd5fedd2cd6a5b17": "0.12.0 0.13.2 0.13.3",
        "d8133727efcb55ad": "0.14.0 0.14.1",
        "83d8871b2b76e6ab": "0.15.0 0.15.1 0.16.0",
        "373492d4bd165265": "0.17.0 0.17.1 0.18.0 0.19.0 0.20.0 0.21.0 0.22.0 0.23.0 0.24.0 "
                            "0.25.0 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0",
    },
}
