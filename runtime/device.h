/* What runs kernels and holds the memory that they work on. A session has one device; execute.c asks it for one step
 * after the other, so that a device's calls cost once a step, never once a work item.
 *
 * Failures: a status, and error() tells why. Calls of one device come from one thread at a time. */
#ifndef KVA_RUNTIME_DEVICE_H
#define KVA_RUNTIME_DEVICE_H

#include "runtime/base/platform.h"
#include "runtime/memory_plan.h"
#include "runtime/runtime.h"

typedef struct kva_device kva_device;

/* A step that calls a kernel. */
typedef struct kva_device_launch {
  const kva_program *program;
  const kva_step_desc *step;
  int64_t items;
  bool serial;            /* too little work for several threads */
  const int64_t *symbols; /* values of program->symbols */
  void *const *args;      /* by argument: addresses on the device */
  const int64_t *bytes;   /* by buffer of the program */
} kva_device_launch;

typedef struct kva_device_class {
  const char *name;
  const char *arch; /* GPU code that it runs where nobody asks for another; NULL: code of the CPU */
  bool host_memory; /* kernels work on the host's memory: callers' tensors and states are used where they are */
  kva_status (*create)(kva_pool *pool, kva_diag *diag, kva_device **out_device); /* the pool stays the caller's */
  void (*destroy)(kva_device *d);
  kva_status (*load)(kva_device *d, const kva_artifact *a, kva_diag *diag); /* before launches; once */
  /* Memory, aligned to KVA_ALIGNMENT. Its content is undefined where host_memory is false, else zero. */
  kva_status (*allocate)(kva_device *d, int64_t bytes, kva_block *out_block);
  void (*free)(kva_device *d, kva_block *block);
  kva_status (*copy_in)(kva_device *d, void *to, const void *from, int64_t bytes);  /* from the host */
  kva_status (*copy_out)(kva_device *d, void *to, const void *from, int64_t bytes); /* to the host */
  kva_status (*copy)(kva_device *d, void *to, const void *from, int64_t bytes);     /* on the device */
  kva_status (*launch)(kva_device *d, const kva_device_launch *launch);
  kva_status (*synchronise)(kva_device *d); /* waits for launches and copies; reports what failed in them */
  const char *(*error)(const kva_device *d);
} kva_device_class;

struct kva_device {
  const kva_device_class *class;
  kva_pool *pool;
};

extern const kva_device_class kva_device_cpu, kva_device_ptxsim;

/* name NULL: "cpu". */
KVA_MUST_USE kva_status kva_device_find(const char *name, kva_diag *diag, const kva_device_class **out_class);

#endif
