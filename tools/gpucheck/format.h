/* The file of cases that kva_gpu_pack writes and kva_gpu_check reads: both come from one build, on one kind of machine.
 *
 *   header, then for every case: gpu_case, its inputs, its outputs; a tensor is gpu_tensor and its data, padded to 8
 * bytes. Inputs are packed in their type, or without data: then they are made up (worker.c). Expected outputs are
 * doubles or int64, as the reference evaluator has them; or without data: then elements are computed where the check
 * runs (oracle.h). */
#ifndef KVA_TOOLS_GPUCHECK_FORMAT_H
#define KVA_TOOLS_GPUCHECK_FORMAT_H

#include "runtime/runtime.h"

#define GPU_CHECK_MAGIC "KVAGPU03"

typedef struct gpu_header {
  char magic[8];
  int64_t n_cases;
} gpu_header;

typedef enum gpu_case_kind {
  GPU_OPERATOR, /* one operator on small operands */
  GPU_KERNEL,   /* a named kernel on small operands, with the reference's results */
  GPU_SHAPE,    /* a named kernel on operands large enough for all of its blocks, against the oracle */
  GPU_TRAINING, /* the curve of a training run */
  GPU_TIMING,   /* a named kernel on large operands, against the oracle, and timed */
  GPU_STEPS,    /* training steps of a language model on random tokens, timed; the input is the tokens' shape */
  GPU_KINDS
} gpu_case_kind;

typedef struct gpu_case {
  char name[120];
  char target[32]; /* what its artefact was compiled for */
  char phase;      /* 'A': correctness and ceilings, 'B': times of kernels, 'C': training */
  bool machine;    /* runs the machine code that is in the artefact; else the driver compiles the PTX */
  int32_t kind, artifact, n_inputs, n_outputs;
  int32_t kernel;      /* KERNEL, SHAPE, TIMING: index in gpu_kernels; else -1 */
  int32_t training;    /* TRAINING: index in gpu_trainings */
  double flops, bytes; /* of one run, or step; TIMING, STEPS */
  int64_t vocab;       /* STEPS */
} gpu_case;

typedef struct gpu_tensor {
  int32_t dtype, rank;
  int64_t dims[KVA_ABI_MAX_RANK];
  int64_t bytes; /* of the data that follow */
  /* Outputs: the largest difference; without data relative to the terms that an element is the sum of. Exact types: 0
   */
  double tolerance;
} gpu_tensor;

/* Training runs to check: a model in one size; the expected output is the loss curve of the CPU. */
typedef struct gpu_training_run {
  const char *name, *model, *defines, *pins;
  bool narrow; /* products in bf16 */
  int64_t steps, batch, vocab, pool;
  double rate, tolerance;
  const char *targets[2];
  char phase;
} gpu_training_run;
extern const gpu_training_run gpu_trainings[];
extern const int gpu_n_trainings;
#define GPU_STEPS_RATE 1e-4

/* Fills in the options of that run, except for the progress function, and its data. */
KVA_MUST_USE kva_status gpu_training(int index, kva_train_options *out, kva_data_source *out_data, kva_diag *diag);

#endif
