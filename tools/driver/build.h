/* Ahead-of-time compilation: from a module to objects, libraries and executables. */
#ifndef KVA_TOOLS_BUILD_H
#define KVA_TOOLS_BUILD_H

#include "runtime/base/platform.h"
#include "tools/driver/driver.h"

/* A session with only an artefact's states: their initial values for this seed. */
KVA_MUST_USE kva_status kva_initial_values(const kva_artifact *a, uint64_t seed, kva_arena *arena, kva_diag *diag,
                                           kva_session **out_session);
/* For inference: turns states that no program writes into constants, stored in `values`; the others stay states.
 * Changes the tables of a; new parts live in arena. */
void kva_freeze_states(const kva_module *m, kva_artifact *a, kva_session *values, kva_arena *arena);

/* Puts large constants into a safetensors file: runtime/weights.h. */
KVA_MUST_USE kva_status kva_move_weights(kva_artifact *a, const char *path, kva_arena *arena, kva_diag *diag);

/* ---- machine code of GPUs ---------------------------------------------------------------------------------------- */

/* Runs argv[0], found through PATH, until it ends: returns 0 and its waitpid state, or the errno that prevented its
 * start. */
int kva_run_program(const char *const *argv, int *out_state);
/* Looks in $KVASIR_PTXAS, PATH, then toolkit folders. false: not found. */
bool kva_find_ptxas(char *out, size_t size);
/* nvJitLink, the toolkit's or a Python package's (nvidia-nvjitlink): compiles PTX as a driver may (tests compare). */
bool kva_find_jit_linker(char *out, size_t size);
/* A cubin for `arch` from PTX, in the arena. KVA_MISSING without ptxas. */
KVA_MUST_USE kva_status kva_assemble_ptx(const char *arch, kva_file_part ptx, kva_arena *arena, kva_diag *diag,
                                         kva_file_part *out_cubin);
/* Adds machine code to an artefact of PTX alone; others stay as they are. The new table is in the arena. */
KVA_MUST_USE kva_status kva_add_machine_code(kva_artifact *a, kva_arena *arena, kva_diag *diag);

/* ---- the C interface of a model ---------------------------------------------------------------------------------- */

/* `text` as a C identifier: other characters become '_', and a leading digit gets a letter before it. */
const char *kva_c_identifier(kva_arena *arena, const char *text);
/* Functions by program: "<prefix>_forward" for "main", else "<prefix>_<program>". */
const kva_object_function *kva_c_functions(kva_arena *arena, const kva_artifact *a, const char *prefix);
/* Prints the header. description: the author's text, or NULL. */
void kva_c_header(const kva_artifact *a, const char *prefix, const char *description, kva_text *out);

/* ---- linking ----------------------------------------------------------------------------------------------------- */

/* An archive with one object that defines the given symbols; deterministic. */
void kva_archive(const char *member, const char *object, size_t size, uint32_t n_symbols, const char *const *symbols,
                 kva_text *out);

typedef struct kva_link_options {
  bool executable;     /* else a shared library */
  bool generate;       /* an executable that writes texts */
  const char *prefix;  /* shared: only symbols <prefix>_* are exported */
  const char *cc;      /* linker driver; NULL: "cc", or "<triple>-gcc" for another machine */
  const char *runtime; /* folder of libkvasir-rt.a; NULL: beside this tool, or ../lib */
  const char *triple;  /* of another machine; NULL: this one */
} kva_link_options;
/* Links an object with the runtime. KVA_MISSING when there is no linker or no runtime. */
KVA_MUST_USE kva_status kva_link(const char *object, size_t size, const char *path, const kva_link_options *options,
                                 kva_diag *diag);

/* ---- complete builds --------------------------------------------------------------------------------------------- */

typedef enum kva_build_form {
  KVA_BUILD_NOTHING, /* only texts */
  KVA_BUILD_OBJECT,
  KVA_BUILD_STATIC,
  KVA_BUILD_SHARED,
  KVA_BUILD_EXE
} kva_build_form;

/* An executable that continues texts with a language model. */
typedef struct kva_build_texts {
  const char *tokenizer; /* the text of a tokenizer.json; NULL: tokens are bytes */
  const char *chat;      /* the tokenizer's format of chats; NULL: unknown */
  int64_t together;      /* sequences of a step, at most */
  int64_t context;       /* tokens of a text, at most: see kva_language */
} kva_build_texts;

typedef struct kva_build_options {
  kva_build_form form;
  bool train;
  const kva_build_texts *texts; /* KVA_BUILD_EXE: the programs of kva_compile_options.decode_only; NULL: none */
  kva_dtype compute;            /* of products: see kva_pass_options */
  kva_dtype caches;             /* of texts: see kva_pass_options */
  int64_t memory;               /* of training: see kva_pass_options */
  kva_mesh mesh;                /* see kva_pass_options */
  kva_pass_control *control;    /* see kva_pass_options */
  uint32_t n_targets;
  const kva_target_options *targets; /* GPU targets share the form, each with its own code; texts per target */
  bool cubin;                        /* GPUs: also machine code */
  const char *output, *prefix, *description;
  uint32_t n_emits;
  const char *const *emits; /* "ir", "kernel", "llvm", "asm", "ptx", "cubin", "header", "plan" */
  uint64_t seed;
  const char *weights; /* file for large constants; NULL: they stay in the object */
  kva_link_options link;
} kva_build_options;

/* Compiles m, which it changes, and writes files. */
KVA_MUST_USE kva_status kva_build_model(kva_module *m, const kva_build_options *options, kva_diag *diag);

#endif
