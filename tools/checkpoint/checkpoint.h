/* Checkpoints of other programs: Hugging Face folders and GGUF files, read by the names that a .kv file has for them
 * (its `checkpoint` blocks, ir/names.h), and written back.
 *
 * Files are mapped. Values are widened to the parameters' types one panel of rows at a time, so a model has one copy
 * of them beside the files; where they only are read, matrices in blocks of codes may stay so. */
#ifndef KVA_TOOLS_CHECKPOINT_H
#define KVA_TOOLS_CHECKPOINT_H

#include "frontend/frontend.h"
#include "ir/names.h"
#include "runtime/base/platform.h"
#include "runtime/safetensors.h"

#include <jansson.h>

/* ---- how elements are packed (packing.c) ------------------------------------------------------------------------- */

typedef struct kva_packing {
  const char *name;        /* "F16", "Q4_K" */
  kva_dtype dtype;         /* of an element; KVA_DTYPE_NONE: there are blocks only */
  int32_t ggml;            /* number of the type in GGUF */
  int32_t elements, bytes; /* of a block, which lies in one row */
  void (*decode)(const unsigned char *blocks, int64_t n, float *out);
  void (*encode)(const float *in, int64_t n, unsigned char *blocks); /* NULL: only read */
  /* Where an element is a code times a half, which a block begins with: signed codes of a block; else NULL. */
  void (*codes)(const unsigned char *block, int8_t *out);
  int bits; /* of such a code: 8, 4 */
} kva_packing;

/* NULL: such elements are not read. */
const kva_packing *kva_packing_of_dtype(kva_dtype t);
const kva_packing *kva_packing_of_ggml(uint32_t type);
const kva_packing *kva_packing_named(const char *name); /* upper or lower case */

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* A tensor in row-major order, dims[0] outermost; data are borrowed from the file and need not be aligned. */
typedef struct kva_foreign_tensor {
  const char *name;
  const kva_packing *packing; /* NULL: its elements cannot be read, and only a buffer may be so */
  kva_dtype dtype;            /* of an element; KVA_DTYPE_NONE in a GGUF file */
  int32_t rank;
  int64_t dims[KVA_ABI_MAX_RANK];
  const unsigned char *data;
  uint32_t file; /* index in kva_foreign.files */
} kva_foreign_tensor;

typedef struct kva_foreign_file {
  const char *name;         /* in the folder */
  kva_file map;             /* of a GGUF file */
  kva_safetensors *tensors; /* of a folder; else NULL */
} kva_foreign_file;

typedef struct kva_foreign {
  const char *path, *format; /* format: as a checkpoint block names it */
  kva_arena *arena;
  json_t *config; /* an object: config.json, or the metadata of a GGUF file under their full keys */
  KVA_VEC(kva_foreign_tensor) tensors;
  KVA_VEC(kva_foreign_file) files;
  kva_map *by_name; /* name -> kva_foreign_tensor * */
} kva_foreign;

/* Whether `path` is a folder, but not one that Kvasir's own checkpoint is in, or a file that begins like a GGUF file.
 */
bool kva_foreign_is(const char *path);
/* Opens a folder with config.json and model.safetensors, or model.safetensors.index.json and its shards; or a GGUF
 * file. */
KVA_MUST_USE kva_status kva_foreign_open(const char *path, kva_diag *diag, kva_foreign **out);
void kva_foreign_close(kva_foreign *f); /* ignores NULL */
const kva_foreign_tensor *kva_foreign_find(const kva_foreign *f, const char *name);
/* The same with the block's prefix, which a name may have or not. */
const kva_foreign_tensor *kva_foreign_resolve(const kva_foreign *f, const kva_names *names, const char *name);
/* The block of the checkpoint's format in a model; an error says that `model` has none. */
KVA_MUST_USE kva_status kva_foreign_names(const kva_foreign *f, const kva_module *m, const char *model, kva_diag *diag,
                                          const kva_names **out);

/* For the files that read formats. */
kva_foreign *kva_foreign_create(const char *path, const char *format);
/* Number of elements; -1: too many to address. */
int64_t kva_foreign_elements(const kva_foreign_tensor *t);
/* Sorts the tensors by name; two of one name are an error. */
KVA_MUST_USE kva_status kva_foreign_index(kva_foreign *f, kva_diag *diag);
KVA_MUST_USE kva_status kva_folder_read(kva_foreign *f, kva_diag *diag);
/* A GGUF file in memory, which must outlive f. Nothing in it is trusted. */
KVA_MUST_USE kva_status kva_gguf_parse(kva_foreign *f, const void *data, size_t size, kva_diag *diag);

/* Loads the model at path `model` with hyper-parameters and parameters from f; `options` may define more, which wins.
 * model NULL: the first .kv file among those of the tool that is for such checkpoints. packed: as kva_foreign_fill. */
KVA_MUST_USE kva_status kva_foreign_load(const char *model, const kva_foreign *f, const kva_load_options *options,
                                         bool packed, kva_diag *diag, kva_module **out_module);

/* ---- use (config.c, fill.c, write_folder.c, write_gguf.c) -------------------------------------------------------- */

/* What the configuration says of the hyper-parameters, in the arena. All fields that no row reads, that are not ignored
 * and that are not null, false or empty are an error, as are values that a row does not allow. */
KVA_MUST_USE kva_status kva_foreign_defines(const kva_foreign *f, const kva_names *names, kva_arena *arena,
                                            kva_diag *diag, uint32_t *out_n, const kva_define **out_defines);
/* Whether the block's first row takes this checkpoint: it says which models the .kv file is for. */
bool kva_foreign_suits(const kva_foreign *f, const kva_names *names);
/* Whether a name matches a pattern, in which '*' is any text without dots. */
bool kva_name_matches(const char *pattern, const char *name);

/* Sets the initial values of all parameters. Missing and surplus tensors and shapes that differ are reported together.
 * packed: matrices that products alone read become constants, as they are in the file if that has codes or floats.
 * Nothing refers to f afterwards. */
KVA_MUST_USE kva_status kva_foreign_fill(kva_module *m, const kva_foreign *f, const kva_names *names, bool packed,
                                         kva_diag *diag);
/* Whether a tensor is one that no parameter is, by the block. */
bool kva_names_is_buffer(const kva_names *names, const char *tensor);
/* The tensor that a parameter is, by a row; NULL: no row is for it. In the arena. */
const char *kva_names_tensor(const kva_names *names, const char *param, kva_arena *arena, const kva_naming **out_row);

/* Writes a folder like f, with the parameters' values: the same files, names, types, shapes and order. All other files
 * of the folder are copied. */
KVA_MUST_USE kva_status kva_folder_write(const kva_module *m, const kva_foreign *f, const kva_names *names,
                                         const char *folder, kva_diag *diag);
/* Refuses a model without a block "gguf", and one that its GGUF file would not be read as, since the block has no row
 * for a hyper-parameter. m: as its .kv file makes it, without values and pins. */
KVA_MUST_USE kva_status kva_gguf_check(const kva_module *m, kva_diag *diag);
/* Writes a GGUF file by the module's block "gguf", which is there: matrices in `packing`, vectors as F32. */
KVA_MUST_USE kva_status kva_gguf_write(const kva_module *m, const kva_packing *packing, const char *path,
                                       kva_diag *diag);
/* The inverse of what filling does: rows [first, first + n) of the tensor that a row makes of a parameter's values. */
void kva_foreign_rows(const kva_naming *row, const kva_tensor_data *values, int64_t first, int64_t n, float *out);

/* ---- for filling (fill.c, packed.c) ------------------------------------------------------------------------------ */

typedef struct kva_matrix {
  int64_t rows, columns;
} kva_matrix;

typedef struct kva_filling {
  kva_state *state;
  const kva_foreign_tensor *tensor;
  const kva_naming *row;
  kva_matrix matrix; /* the tensor; a vector is one row, or has rows of one element that are exchanged */
  bool packed;       /* it stays in blocks of codes */
  bool constant;     /* products read it, as it is in the file */
} kva_filling;
/* The row of the tensor that is row `own` of the parameter, or its column if the tensor is transposed. */
int64_t kva_tensor_row(const kva_naming *row, int64_t own);
/* Gives back pages of the file that have been read. */
void kva_forget_tensor(const kva_filling *f);
bool kva_fills_packed(const kva_module *m, const kva_filling *f);
bool kva_fills_constant(const kva_module *m, const kva_filling *f);
/* Replaces the parameters that stay packed. */
KVA_MUST_USE kva_status kva_set_packed(kva_module *m, uint32_t n, const kva_filling *fillings, kva_pool *pool);

#endif
