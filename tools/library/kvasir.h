/* The compiler as a library: opens ONNX and .kv models, compiles them for this machine, runs and trains them in
 * process.
 *
 *   kvasir_model *model;
 *   kvasir_program *program;
 *   kvasir_session *session;
 *   kvasir_model_open("model.onnx", NULL, &model, NULL);
 *   kvasir_compile(model, NULL, &program, NULL);
 *   kvasir_session_create(program, NULL, &session, NULL);
 *   kvasir_session_run(session, inputs, n_inputs, outputs, n_outputs, NULL);
 *
 * Nothing is printed, no signal is caught, and the process is not ended. There is no global state: objects are
 * independent. One thread at a time uses an object; sessions of one program are objects of their own, so that several
 * threads run one program with a session each.
 *
 * Ownership: functions with an `out_` parameter for an object give it to the caller, who destroys it; the order of
 * destruction is free. Strings and arrays that a function returns are borrowed from the object that it was called with.
 * Structs of options may be all zero, or a null pointer in their place; their strings are copied. Tensors are borrowed
 * for the length of a call. A null pointer where an object must be is KVASIR_INVALID; of it, counts are 0 and the rest
 * NULL or empty; destroying it does nothing.
 *
 * Every function that can fail returns a status and takes `out_messages` (may be NULL): set to NULL if there is nothing
 * to say, else to an object with errors, or after success warnings, for kvasir_messages_destroy. */
#ifndef KVASIR_H
#define KVASIR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined __GNUC__
#define KVASIR_API __attribute__((visibility("default")))
#else
#define KVASIR_API
#endif

typedef enum kvasir_status {
  KVASIR_OK = 0,
  KVASIR_INVALID = 1,     /* the input contradicts its own rules, or an argument those of its function */
  KVASIR_UNSUPPORTED = 2, /* the input is valid, but Kvasir does not support it */
  KVASIR_MISSING = 3,     /* the machine lacks something: a device, a library */
  KVASIR_IO = 4,          /* a file could not be read or written */
  KVASIR_NO_MEMORY = 5,
  KVASIR_NOT_FINITE = 6, /* a training step met NaN or infinity; it changed nothing */
  KVASIR_INTERNAL = 7    /* a fault of Kvasir. What the call had allocated is lost */
} kvasir_status;

/* "0.2.0" */
KVASIR_API const char *kvasir_version(void);

/* ---- messages ---------------------------------------------------------------------------------------------------- */

typedef struct kvasir_messages kvasir_messages;

typedef enum kvasir_severity { KVASIR_NOTE, KVASIR_WARNING, KVASIR_ERROR } kvasir_severity;

typedef struct kvasir_message {
  kvasir_severity severity;
  const char *text;
  const char *file; /* NULL: no place */
  uint32_t line;    /* from 1; 0: none */
  uint32_t column;  /* from 1; 0: none */
  const char *node; /* of an ONNX graph; NULL: none */
} kvasir_message;

/* Everything as the tool prints it: a line for each message, with place, and the line of source where there is one. */
KVASIR_API const char *kvasir_messages_text(const kvasir_messages *messages);
KVASIR_API size_t kvasir_messages_count(const kvasir_messages *messages);
/* Message i; all zero beyond the last. */
KVASIR_API kvasir_message kvasir_messages_at(const kvasir_messages *messages, size_t i);
KVASIR_API void kvasir_messages_destroy(kvasir_messages *messages);

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Types of elements, with the numbers of onnx.TensorProto.DataType. Types of 4 and 2 bits are packed, the first element
 * in the lowest bits. */
typedef enum kvasir_type {
  KVASIR_FLOAT = 1,
  KVASIR_UINT8 = 2,
  KVASIR_INT8 = 3,
  KVASIR_UINT16 = 4,
  KVASIR_INT16 = 5,
  KVASIR_INT32 = 6,
  KVASIR_INT64 = 7,
  KVASIR_BOOL = 9,
  KVASIR_FLOAT16 = 10,
  KVASIR_DOUBLE = 11,
  KVASIR_UINT32 = 12,
  KVASIR_UINT64 = 13,
  KVASIR_COMPLEX64 = 14,
  KVASIR_COMPLEX128 = 15,
  KVASIR_BFLOAT16 = 16,
  KVASIR_FLOAT8E4M3FN = 17,
  KVASIR_FLOAT8E4M3FNUZ = 18,
  KVASIR_FLOAT8E5M2 = 19,
  KVASIR_FLOAT8E5M2FNUZ = 20,
  KVASIR_UINT4 = 21,
  KVASIR_INT4 = 22,
  KVASIR_FLOAT4E2M1 = 23,
  KVASIR_FLOAT8E8M0 = 24,
  KVASIR_UINT2 = 25,
  KVASIR_INT2 = 26
} kvasir_type;

enum { KVASIR_MAX_RANK = 8 };

/* A dense row-major tensor in host memory, aligned to its elements. */
typedef struct kvasir_tensor {
  int32_t type; /* kvasir_type */
  int32_t rank;
  int64_t dims[KVASIR_MAX_RANK];
  void *data;
} kvasir_tensor;

/* Bytes of a tensor's data; -1: the type or a dimension is wrong, or the size overflows. */
KVASIR_API int64_t kvasir_tensor_bytes(const kvasir_tensor *tensor);
/* ONNX's name of a type: "float", "int64"; NULL: no such type. */
KVASIR_API const char *kvasir_type_name(int32_t type);

/* DLPack's structs (its version 1): the layout is that of DLTensor, DLManagedTensor and DLManagedTensorVersioned, whose
 * pointers may be cast to these. */
typedef struct kvasir_dl_tensor {
  void *data;
  int32_t device_type; /* 1: host memory */
  int32_t device_id;
  int32_t rank;
  uint8_t type_code; /* 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool, 10 to 14 and 17: narrow floats */
  uint8_t type_bits;
  uint16_t type_lanes;
  int64_t *dims;
  int64_t *strides; /* in elements; NULL: dense row-major */
  uint64_t byte_offset;
} kvasir_dl_tensor;

typedef struct kvasir_dl_managed {
  kvasir_dl_tensor tensor;
  void *owner;
  void (*destroy)(struct kvasir_dl_managed *self); /* whoever receives the struct calls it once */
} kvasir_dl_managed;

typedef struct kvasir_dl_versioned {
  uint32_t major, minor;
  void *owner;
  void (*destroy)(struct kvasir_dl_versioned *self);
  uint64_t flags; /* bit 0: read-only */
  kvasir_dl_tensor tensor;
} kvasir_dl_versioned;

/* Borrows the memory of a DLPack tensor, which must live and stay unchanged as long as *out_tensor is used. Other
 * devices, strides that are not dense row-major and types that Kvasir lacks are refused. */
KVASIR_API kvasir_status kvasir_tensor_from_dlpack(const kvasir_dl_tensor *dl, kvasir_tensor *out_tensor,
                                                   kvasir_messages **out_messages);
/* Copies a tensor, so that it outlives the next run of the session that wrote it. */
KVASIR_API kvasir_status kvasir_tensor_to_dlpack(const kvasir_tensor *tensor, kvasir_dl_managed **out_managed,
                                                 kvasir_messages **out_messages);

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct kvasir_model kvasir_model;

typedef struct kvasir_setting {
  const char *name, *value;
} kvasir_setting;

typedef struct kvasir_model_options {
  size_t n_defines;
  const kvasir_setting *defines; /* hyper-parameters of a .kv model */
  size_t n_pins;
  const kvasir_setting *pins; /* shape symbols with a fixed value: {"T", "128"} */
  const char *weights;        /* trained values by name: a safetensors file or checkpoint; NULL: the model's own */
  int free_batch; /* not 0: inputs of an ONNX model whose first dimension is 1 take any number of rows, symbol "B" */
  /* not 0: Dropout and BatchNormalization of an ONNX model in training mode do what that mode means in training steps
   * alone, where running statistics are kept; else they are inference. For training such a model. */
  int inference;
} kvasir_model_options;

/* Reads a model by its content: ONNX, or a .kv text. On failure the messages name every problem of the file. Inputs and
 * outputs of strings are KVASIR_UNSUPPORTED. */
KVASIR_API kvasir_status kvasir_model_open(const char *path, const kvasir_model_options *options,
                                           kvasir_model **out_model, kvasir_messages **out_messages);
/* The same from memory, which is borrowed until the model is destroyed. `name` is for messages (NULL: "model"). Such a
 * model has no folder, so that it may not refer to external data. */
KVASIR_API kvasir_status kvasir_model_open_bytes(const void *data, size_t size, const char *name,
                                                 const kvasir_model_options *options, kvasir_model **out_model,
                                                 kvasir_messages **out_messages);
KVASIR_API void kvasir_model_destroy(kvasir_model *model);

/* An input or output. A dimension that is not a number is -1 in dims, and symbols has its name or expression. */
typedef struct kvasir_port {
  const char *name;
  int32_t type; /* kvasir_type */
  int32_t rank;
  int64_t dims[KVASIR_MAX_RANK];
  const char *symbols[KVASIR_MAX_RANK]; /* "B", "2*T"; NULL: a number */
} kvasir_port;

/* Of the graph, or of the .kv model. */
KVASIR_API const char *kvasir_model_name(const kvasir_model *model);
KVASIR_API size_t kvasir_model_input_count(const kvasir_model *model);
KVASIR_API size_t kvasir_model_output_count(const kvasir_model *model);
/* NULL: no such input or output. */
KVASIR_API const kvasir_port *kvasir_model_input(const kvasir_model *model, size_t i);
KVASIR_API const kvasir_port *kvasir_model_output(const kvasir_model *model, size_t i);

/* ---- compiling --------------------------------------------------------------------------------------------------- */

/* Compiled code with its constants, shared by its sessions. */
typedef struct kvasir_program kvasir_program;

typedef struct kvasir_compile_options {
  const char *device; /* where it will run: "cpu" (NULL), "cuda", or "ptxsim", a simulated GPU */
  const char *target; /* what to compile for; NULL: this machine's CPU, the device's GPU. "x86-64-v3", "sm_80", ... */
  const char *precision; /* of products: "f32" (NULL), "bf16", "f16" */
  const char *gemm;  /* products: GPU: "library", "generated"; CPU with AMX: "generated", "bf16x3"; NULL: the default */
  const char *math;  /* "exact" (NULL); "relaxed": 3x3 convolutions on a CPU by Winograd's transforms; "int8": that, and
                        what quantised weights multiply is rounded to 8 bits */
  const char *cache; /* folder of compiled code, "off", or NULL: the one of the tool ($KVASIR_CACHE, ~/.cache) */
  int check_indices; /* not 0: an index of the data that is out of range fails the run; else it is clamped */
} kvasir_compile_options;

/* Whether this machine has a device: KVASIR_MISSING with the reason if not, KVASIR_INVALID for an unknown name. */
KVASIR_API kvasir_status kvasir_device_check(const char *device, kvasir_messages **out_messages);

/* Compiles for inference. A model may be compiled several times; from the second time on it is read again. */
KVASIR_API kvasir_status kvasir_compile(kvasir_model *model, const kvasir_compile_options *options,
                                        kvasir_program **out_program, kvasir_messages **out_messages);

/* What is trained, and by which loss. Patterns are globs of parameters' names (* ? [...]). */
typedef struct kvasir_training {
  const char *loss;      /* "cross_entropy", "mse": required for a model without a train block, else NULL */
  const char *labels;    /* type of the labels of cross_entropy: "int64" (NULL), "int32" */
  const char *optimizer; /* with `loss`: "adamw" (NULL), or another optimizer of train blocks */
  double weight_decay;   /* with `loss`: of matrices and filters */
  size_t n_train, n_freeze, n_init, n_lora;
  const char *const *train;  /* what trains; all else is frozen. None: all parameters (of ONNX: initialisers and
                                tensors of Constant nodes), but with `lora` none */
  const char *const *freeze; /* what does not train, whatever `train` says */
  const char *const *init;   /* new values: "PATTERN=zeros", "=constant(x)", "=normal(s)", "=uniform(a,b)", "=he" */
  const char *const *lora;   /* weights of products that get low-rank updates, which train instead of them */
  int64_t lora_rank;         /* 0: 8 */
  double lora_alpha;         /* 0: 16. Updates are scaled by lora_alpha / lora_rank */
} kvasir_training;

/* Compiles for training and inference: sessions of the program take kvasir_session_train, _evaluate and _run. The loss
 * adds an input behind the model's own: "labels" or "target". */
KVASIR_API kvasir_status kvasir_compile_training(kvasir_model *model, const kvasir_compile_options *options,
                                                 const kvasir_training *training, kvasir_program **out_program,
                                                 kvasir_messages **out_messages);
/* The program's sessions keep it alive. */
KVASIR_API void kvasir_program_destroy(kvasir_program *program);

/* What kvasir_session_train takes: the model's data and what its loss needs, without the learning rate. 0 of a program
 * that is not for training. */
KVASIR_API size_t kvasir_program_train_input_count(const kvasir_program *program);
KVASIR_API const kvasir_port *kvasir_program_train_input(const kvasir_program *program, size_t i);
/* Names of the numbers that a training step and an evaluation report: the loss, then metrics. */
KVASIR_API size_t kvasir_program_value_count(const kvasir_program *program);
KVASIR_API const char *kvasir_program_value_name(const kvasir_program *program, size_t i);
/* Learning rate of the model's train block at a step, which counts from 1; 1e-3 for a loss of kvasir_training. */
KVASIR_API double kvasir_program_rate(const kvasir_program *program, int64_t step);

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

/* A program's parameters, states and memory. */
typedef struct kvasir_session kvasir_session;

typedef struct kvasir_session_options {
  int threads;   /* 0: as many as the process may use; results do not depend on it */
  int spin;      /* not 0: threads spin briefly before they sleep: faster, but busy for a while after each call */
  uint64_t seed; /* of parameters without values, and of dropout */
} kvasir_session_options;

KVASIR_API kvasir_status kvasir_session_create(kvasir_program *program, const kvasir_session_options *options,
                                               kvasir_session **out_session, kvasir_messages **out_messages);
KVASIR_API void kvasir_session_destroy(kvasir_session *session);

/* Runs the model: inputs and outputs in its order. An output with data NULL gets its type and dims and the session's
 * memory, valid until the next call that runs the session; else the caller's memory is written, and type and dims must
 * be those of the result (kvasir_session_shapes); it must not overlap an input. */
KVASIR_API kvasir_status kvasir_session_run(kvasir_session *session, const kvasir_tensor *inputs, size_t n_inputs,
                                            kvasir_tensor *outputs, size_t n_outputs, kvasir_messages **out_messages);
/* Types and dims of the outputs for inputs of these types and dims, whose data is not read. A dimension that only a run
 * finds is -1. */
KVASIR_API kvasir_status kvasir_session_shapes(kvasir_session *session, const kvasir_tensor *inputs, size_t n_inputs,
                                               kvasir_tensor *outputs, size_t n_outputs,
                                               kvasir_messages **out_messages);

/* A training step on one batch: inputs as kvasir_program_train_input says. A label that is no class, but for -1, which
 * adds no loss, or another index out of range is KVASIR_INVALID. out_values (may be NULL) receives
 * kvasir_program_value_count numbers. A loss or gradient that is not finite is KVASIR_NOT_FINITE: the message says
 * where it began, and no parameter has changed. */
KVASIR_API kvasir_status kvasir_session_train(kvasir_session *session, const kvasir_tensor *inputs, size_t n_inputs,
                                              double rate, double *out_values, kvasir_messages **out_messages);
/* The same numbers without learning. */
KVASIR_API kvasir_status kvasir_session_evaluate(kvasir_session *session, const kvasir_tensor *inputs, size_t n_inputs,
                                                 double *out_values, kvasir_messages **out_messages);

/* Parameters and other states. */
typedef enum kvasir_state_kind {
  KVASIR_PARAMETER,
  KVASIR_MOMENT, /* of a parameter's optimizer */
  KVASIR_BUFFER, /* running statistics, counters, settings */
  KVASIR_CACHE   /* of one sequence or step; not saved */
} kvasir_state_kind;

KVASIR_API size_t kvasir_session_state_count(const kvasir_session *session);
/* The name of state i; NULL: no such state, or the device failed. *out_tensor is the state itself: writable, current
 * until the next call that runs the session. out_kind may be NULL. */
KVASIR_API const char *kvasir_session_state(kvasir_session *session, size_t i, kvasir_state_kind *out_kind,
                                            kvasir_tensor *out_tensor);
/* Writes every state but caches to a safetensors file, which kvasir_model_options.weights and `kvasir --weights` read,
 * too. The old file stays until the new one is complete. */
KVASIR_API kvasir_status kvasir_session_save(kvasir_session *session, const char *path, kvasir_messages **out_messages);
/* Sets states from such a file: every parameter must be in it, with its type and dims; other states are set if they
 * are. A failure changes nothing. */
KVASIR_API kvasir_status kvasir_session_load(kvasir_session *session, const char *path, kvasir_messages **out_messages);

#ifdef __cplusplus
}
#endif

#endif
