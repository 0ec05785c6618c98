/* The file of cases that kva_gpu_pack writes and kva_gpu_check reads: both come from one build, on one kind of machine.
 *
 *   header, then for every case: gpu_case, its inputs, its expected outputs; a tensor is gpu_tensor and its data,
 * padded to 8 bytes. Inputs are packed in their type, or without data: then they are random. Expected outputs are
 * doubles or int64, as the reference evaluator has them. */
#ifndef KVA_TOOLS_GPUCHECK_FORMAT_H
#define KVA_TOOLS_GPUCHECK_FORMAT_H

#include "runtime/runtime.h"

#define GPU_CHECK_MAGIC "KVAGPU01"

typedef struct gpu_header {
  char magic[8];
  int64_t n_cases;
} gpu_header;

typedef enum gpu_case_kind {
  GPU_OPERATOR, /* one operator on small operands */
  GPU_KERNEL,   /* a named kernel on small operands */
  GPU_TRAINING, /* the curve of a training run */
  GPU_TIMING,   /* a named kernel on large random operands */
  GPU_STEPS,    /* training steps of a language model on random tokens, timed; the input is the tokens' shape */
  GPU_KINDS
} gpu_case_kind;

typedef struct gpu_case {
  char name[120];
  char target[16]; /* what its artefact was compiled for */
  int32_t kind, artifact, n_inputs, n_outputs;
  double flops, bytes; /* of one run, or step; TIMING, STEPS */
  int64_t vocab;       /* STEPS */
} gpu_case;

typedef struct gpu_tensor {
  int32_t dtype, rank;
  int64_t dims[KVA_ABI_MAX_RANK];
  int64_t bytes;    /* of the data that follow */
  double tolerance; /* expected outputs: largest difference; exact types: 0 */
} gpu_tensor;

/* The training run to check: models/induction.kv in this size. Its expected output is the loss curve. */
enum { GPU_TRAIN_STEPS = 20, GPU_TRAIN_BATCH = 4, GPU_TRAIN_LENGTH = 32, GPU_TRAIN_VOCAB = 64, GPU_TRAIN_POOL = 24 };
#define GPU_TRAIN_RATE 1e-2
#define GPU_STEPS_RATE 1e-4

/* Fills in the options of that run, except for the progress function, and its data. */
KVA_MUST_USE kva_status gpu_training(kva_train_options *out, kva_data_source *out_data, kva_diag *diag);

#endif
