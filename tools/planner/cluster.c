/* Kinds of GPUs, and clusters of them. */
#include "tools/planner/planner.h"

#include <stdlib.h>

/* Numbers of NVIDIA's data sheets, for the SXM modules and the DGX machines of eight:
 * - a100: "NVIDIA A100 Tensor Core GPU" (80 GB SXM: 312 TFLOP/s in BF16 without sparsity, 2,039 GB/s, NVLink 600 GB/s
 * for both directions); "DGX A100": a ConnectX-6 of 200 Gb/s for each GPU.
 * - h100: "NVIDIA H100 Tensor Core GPU" (SXM: 80 GB, 1,979 TFLOP/s in BF16 with sparsity, half of it without, 3.35
 * TB/s, NVLink 900 GB/s for both directions); "DGX H100": a ConnectX-7 of 400 Gb/s for each GPU.
 * - h200: "NVIDIA H200 Tensor Core GPU" (SXM: 141 GB, 4.8 TB/s, otherwise as h100); "DGX H200": as DGX H100.
 * - b200: "DGX B200": 1,440 GB and 64 TB/s for eight GPUs, NVLink 14.4 TB/s in all, eight ConnectX-7 of 400 Gb/s;
 * "NVIDIA Blackwell Architecture Technical Brief": HGX B200, 2.25 PFLOP/s a GPU in BF16 without sparsity. Code is that
 * for sm_90a. A GB is 10^9 bytes here. NVLink and the network send and receive at once, half of a sum for both
 * directions each. */
static const kva_gpu_kind gpus[] = {
    {.name = "a100",
     .arch = "sm_80",
     .memory = 80e9,
     .flops = 312e12,
     .hbm = 2.039e12,
     .nvlink = 300e9,
     .network = 25e9},
    {.name = "h100",
     .arch = "sm_90a",
     .memory = 80e9,
     .flops = 989e12,
     .hbm = 3.35e12,
     .nvlink = 450e9,
     .network = 50e9},
    {.name = "h200",
     .arch = "sm_90a",
     .memory = 141e9,
     .flops = 989e12,
     .hbm = 4.8e12,
     .nvlink = 450e9,
     .network = 50e9},
    {.name = "b200",
     .arch = "sm_90a",
     .memory = 180e9,
     .flops = 2250e12,
     .hbm = 8e12,
     .nvlink = 900e9,
     .network = 50e9},
};
enum { N_GPUS = sizeof gpus / sizeof *gpus, MOST = 1 << 16 /* GPUs, as processes of --mesh */ };

/* Seconds of a message, by the model that NCCL chooses its algorithms with: hwLat in src/graph/tuning.cc, a ring with
 * protocol Simple. */
#define NVLINK_LATENCY  3.4e-6
#define NETWORK_LATENCY 14e-6

/* An assumption: the driver's context, work space of cuBLASLt, buffers of MPI. */
enum { RESERVE_PERCENT = 5 };

static kva_status unknown_gpu(const char *text, kva_diag *diag) {
  kva_text known = {0};
  for (int i = 0; i < N_GPUS; i++) kva_text_add(&known, "%s%s", i ? ", " : "", gpus[i].name);
  kva_status status = kva_error(diag, NULL, "--cluster %s: no such GPU is known; there are: %s", text, known.data);
  kva_text_free(&known);
  return status;
}

/* "x16" at *at, behind which *at is then. */
static bool take_count(const char **at, int64_t *out) {
  char *end;
  if (**at != 'x' || (*at)[1] < '1' || (*at)[1] > '9') return false;
  *out = strtoll(*at + 1, &end, 10);
  *at = end;
  return *out <= MOST;
}

kva_status kva_cluster_named(const char *text, kva_diag *diag, kva_cluster *out) {
  size_t len = strcspn(text, "x");
  *out = (kva_cluster){0};
  for (int i = 0; i < N_GPUS; i++)
    if (strlen(gpus[i].name) == len && !strncmp(text, gpus[i].name, len)) out->gpu = &gpus[i];
  if (!out->gpu) return unknown_gpu(text, diag);
  const char *at = text + len;
  if (take_count(&at, &out->per_node) && take_count(&at, &out->nodes) && !*at && kva_cluster_gpus(out) <= MOST)
    return KVA_OK;
  return kva_error(diag, NULL,
                   "--cluster %s: expected a GPU, how many a node has and the number of nodes, %d GPUs at most, as "
                   "in h100x8x16",
                   text, MOST);
}

int64_t kva_cluster_room(const kva_cluster *c) {
  return c->gpu->memory - c->gpu->memory / 100 * RESERVE_PERCENT;
}

kva_link kva_cluster_link(const kva_cluster *c, int64_t parts, int64_t stride) {
  if (c->per_node % (parts * stride) == 0) return (kva_link){"NVLink", NVLINK_LATENCY, c->gpu->nvlink};
  return (kva_link){"network", NETWORK_LATENCY, c->gpu->network};
}
