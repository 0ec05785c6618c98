/* NVIDIA's driver, cuBLASLt and NCCL as tables of functions that are looked up when a device is created. So one build
 * serves machines with and without them, and CUDA headers are not needed.
 *
 * Types, values and signatures follow NVIDIA's documentation ("CUDA Driver API", "cuBLAS library: cuBLASLt",
 * "NCCL API").
 * tests/runtime/test_cuda_headers.sh compares them with a toolkit's headers if one is installed. */
#ifndef KVA_RUNTIME_CUDA_API_H
#define KVA_RUNTIME_CUDA_API_H

#include "runtime/base/base.h"

/* ---- driver ------------------------------------------------------------------------------------------------------ */

typedef int cu_result; /* CUresult and all enumerations of the API */
typedef int cu_device;
typedef unsigned long long cu_pointer; /* CUdeviceptr */
typedef struct cu_context_object *cu_context;
typedef struct cu_module_object *cu_module;
typedef struct cu_function_object *cu_function;
typedef struct cu_stream_object *cu_stream;
typedef struct cu_event_object *cu_event;
typedef struct cu_graph_object *cu_graph;
typedef struct cu_graph_exec_object *cu_graph_exec;

typedef struct cu_tensor_map {
  _Alignas(64) uint64_t opaque[16];
} cu_tensor_map;

enum {
  CU_SUCCESS = 0,
  CU_ERROR_INVALID_VALUE = 1,
  CU_ERROR_OUT_OF_MEMORY = 2,
  CU_ERROR_NO_DEVICE = 100,
  CU_ERROR_INVALID_PTX = 218,
  CU_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CU_ERROR_NOT_FOUND = 500,
  CU_ATTRIBUTE_MULTIPROCESSORS = 16,
  CU_ATTRIBUTE_MAJOR = 75,
  CU_ATTRIBUTE_MINOR = 76,
  CU_ATTRIBUTE_COOPERATIVE_LAUNCH = 95,
  CU_FUNCTION_SHARED_BYTES = 1, /* static, per block */
  CU_FUNCTION_LOCAL_BYTES = 3,  /* per thread */
  CU_FUNCTION_REGISTERS = 4,
  CU_FUNCTION_MAX_DYNAMIC_SHARED = 8,
  CU_JIT_INFO_LOG = 3,
  CU_JIT_INFO_LOG_SIZE = 4,
  CU_JIT_ERROR_LOG = 5,
  CU_JIT_ERROR_LOG_SIZE = 6,
  CU_JIT_VERBOSE_LOG = 12,
  CU_STREAM_NON_BLOCKING = 1,
  CU_CAPTURE_THREAD_LOCAL = 1,
};

/* CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion */
enum {
  CU_MAP_U8 = 0,
  CU_MAP_U16 = 1,
  CU_MAP_U32 = 2,
  CU_MAP_I32 = 3,
  CU_MAP_U64 = 4,
  CU_MAP_I64 = 5,
  CU_MAP_F16 = 6,
  CU_MAP_F32 = 7,
  CU_MAP_F64 = 8,
  CU_MAP_BF16 = 9,
  CU_MAP_SWIZZLE_NONE = 0,
  CU_MAP_SWIZZLE_32 = 1,
  CU_MAP_SWIZZLE_64 = 2,
  CU_MAP_SWIZZLE_128 = 3,
  CU_MAP_L2_128 = 2,
};

/* X(name, exported symbol, parameters) */
#define KVA_CUDA_FUNCTIONS(X)                                                                                     \
  X(cuInit, "cuInit", (unsigned flags))                                                                           \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int *out_version))                                                 \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int *out_n))                                                           \
  X(cuDeviceGet, "cuDeviceGet", (cu_device * out_device, int ordinal))                                            \
  X(cuDeviceGetName, "cuDeviceGetName", (char *name, int size, cu_device device))                                 \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *out_value, cu_result attribute, cu_device device))        \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t * out_bytes, cu_device device))                              \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (cu_context * out_context, cu_device device))           \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                                \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", (cu_context context))                                                     \
  X(cuGetErrorName, "cuGetErrorName", (cu_result error, const char **out_name))                                   \
  X(cuGetErrorString, "cuGetErrorString", (cu_result error, const char **out_text))                               \
  X(cuStreamCreate, "cuStreamCreate", (cu_stream * out_stream, unsigned flags))                                   \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (cu_stream stream))                                                    \
  X(cuStreamSynchronize, "cuStreamSynchronize", (cu_stream stream))                                               \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", (cu_stream stream, cu_event event, unsigned flags))                   \
  X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t * out_free, size_t * out_total))                                     \
  X(cuMemAlloc, "cuMemAlloc_v2", (cu_pointer * out_pointer, size_t bytes))                                        \
  X(cuMemFree, "cuMemFree_v2", (cu_pointer pointer))                                                              \
  X(cuMemAllocHost, "cuMemAllocHost_v2", (void **out_data, size_t bytes))                                         \
  X(cuMemFreeHost, "cuMemFreeHost", (void *data))                                                                 \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (cu_pointer to, const void *from, size_t bytes, cu_stream stream)) \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *to, cu_pointer from, size_t bytes, cu_stream stream))       \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream))  \
  X(cuMemsetD8Async, "cuMemsetD8Async", (cu_pointer to, unsigned char value, size_t bytes, cu_stream stream))     \
  X(cuModuleLoadDataEx, "cuModuleLoadDataEx",                                                                     \
    (cu_module * out_module, const void *image, unsigned n_options, cu_result *options, void **values))           \
  X(cuModuleUnload, "cuModuleUnload", (cu_module module))                                                         \
  X(cuModuleGetFunction, "cuModuleGetFunction", (cu_function * out_function, cu_module module, const char *name)) \
  X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *out_value, cu_result attribute, cu_function function))        \
  X(cuFuncSetAttribute, "cuFuncSetAttribute", (cu_function function, cu_result attribute, int value))             \
  X(cuLaunchKernel, "cuLaunchKernel",                                                                             \
    (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned dynamic_shared, cu_stream stream, void **params, void **extra))                   \
  X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel",                                                       \
    (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned dynamic_shared, cu_stream stream, void **params))                                 \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                   \
    (int *out_blocks, cu_function function, int threads, size_t dynamic_shared))                                  \
  X(cuEventCreate, "cuEventCreate", (cu_event * out_event, unsigned flags))                                       \
  X(cuEventDestroy, "cuEventDestroy_v2", (cu_event event))                                                        \
  X(cuEventRecord, "cuEventRecord", (cu_event event, cu_stream stream))                                           \
  X(cuEventSynchronize, "cuEventSynchronize", (cu_event event))                                                   \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float *out_milliseconds, cu_event from, cu_event to))              \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (cu_stream stream, cu_result mode))                          \
  X(cuStreamEndCapture, "cuStreamEndCapture", (cu_stream stream, cu_graph * out_graph))                           \
  X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",                                                   \
    (cu_graph_exec * out_exec, cu_graph graph, unsigned long long flags))                                         \
  X(cuGraphLaunch, "cuGraphLaunch", (cu_graph_exec exec, cu_stream stream))                                       \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", (cu_graph_exec exec))                                               \
  X(cuGraphDestroy, "cuGraphDestroy", (cu_graph graph))

/* Available since CUDA 12; NULL before. */
#define KVA_CUDA_OPTIONAL_FUNCTIONS(X)                                                                    \
  X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                                     \
    (cu_tensor_map * out_map, cu_result dtype, uint32_t rank, void *base, const uint64_t *dims,           \
     const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides, cu_result interleave, \
     cu_result swizzle, cu_result l2_promotion, cu_result out_of_bounds))

#define KVA_CUDA_MEMBER(name, symbol, params) cu_result(*name) params;
typedef struct kva_cuda_api {
  void *library;
  KVA_CUDA_FUNCTIONS(KVA_CUDA_MEMBER)
  KVA_CUDA_OPTIONAL_FUNCTIONS(KVA_CUDA_MEMBER)
} kva_cuda_api;

/* Loads $KVASIR_CUDA_LIBRARY or libcuda.so.1 and calls cuInit. KVA_MISSING says what to install. The library is never
 * unloaded: drivers do not support that. */
KVA_MUST_USE kva_status kva_cuda_api_load(kva_diag *diag, kva_cuda_api *out_api);
/* "CUDA_ERROR_...: text" for an error code, written to `text`. */
void kva_cuda_error_text(const kva_cuda_api *api, cu_result error, char *text, size_t size);

/* ---- cuBLASLt ---------------------------------------------------------------------------------------------------- */

typedef int blas_status;
typedef struct blas_handle_object *blas_handle;
typedef struct blas_desc_object *blas_desc;
typedef struct blas_layout_object *blas_layout;
typedef struct blas_preference_object *blas_preference;

typedef struct blas_algorithm {
  uint64_t data[8];
} blas_algorithm;
typedef struct blas_heuristic {
  blas_algorithm algorithm;
  size_t workspace;
  blas_status state;
  float waves;
  int reserved[4];
} blas_heuristic;
_Static_assert(sizeof(blas_heuristic) == 96, "cublasLtMatmulHeuristicResult_t");
_Static_assert(sizeof(cu_tensor_map) == 128, "CUtensorMap");

enum {
  BLAS_SUCCESS = 0,
  BLAS_COMPUTE_F32 = 68, /* CUBLAS_COMPUTE_32F: float products are float, not TF32 */
  BLAS_TYPE_F32 = 0,     /* cudaDataType */
  BLAS_TYPE_F16 = 2,
  BLAS_TYPE_BF16 = 14,
  BLAS_DESC_TRANSPOSE_A = 3, /* int32: 0 no, 1 yes */
  BLAS_DESC_TRANSPOSE_B = 4,
  BLAS_LAYOUT_BATCH = 5,           /* int32 */
  BLAS_LAYOUT_BATCH_STEP = 6,      /* int64, elements */
  BLAS_PREFERENCE_WORKSPACE = 1,   /* uint64 */
  BLAS_PREFERENCE_ALIGNMENT_A = 5, /* uint32; B, C, D follow */
};

#define KVA_BLAS_FUNCTIONS(X)                                                                                    \
  X(cublasLtCreate, "cublasLtCreate", (blas_handle * out_handle))                                                \
  X(cublasLtDestroy, "cublasLtDestroy", (blas_handle handle))                                                    \
  X(cublasLtMatmulDescCreate, "cublasLtMatmulDescCreate", (blas_desc * out_desc, int compute, int scale_type))   \
  X(cublasLtMatmulDescDestroy, "cublasLtMatmulDescDestroy", (blas_desc desc))                                    \
  X(cublasLtMatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute",                                            \
    (blas_desc desc, int attribute, const void *value, size_t size))                                             \
  X(cublasLtMatrixLayoutCreate, "cublasLtMatrixLayoutCreate",                                                    \
    (blas_layout * out_layout, int type, uint64_t rows, uint64_t columns, int64_t leading))                      \
  X(cublasLtMatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy", (blas_layout layout))                            \
  X(cublasLtMatrixLayoutSetAttribute, "cublasLtMatrixLayoutSetAttribute",                                        \
    (blas_layout layout, int attribute, const void *value, size_t size))                                         \
  X(cublasLtMatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate", (blas_preference * out_preference))        \
  X(cublasLtMatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy", (blas_preference preference))            \
  X(cublasLtMatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute",                                \
    (blas_preference preference, int attribute, const void *value, size_t size))                                 \
  X(cublasLtMatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic",                                            \
    (blas_handle handle, blas_desc desc, blas_layout a, blas_layout b, blas_layout c, blas_layout d,             \
     blas_preference preference, int n_asked, blas_heuristic *results, int *out_n))                              \
  X(cublasLtMatmul, "cublasLtMatmul",                                                                            \
    (blas_handle handle, blas_desc desc, const void *alpha, const void *a, blas_layout layout_a, const void *b,  \
     blas_layout layout_b, const void *beta, const void *c, blas_layout layout_c, void *d, blas_layout layout_d, \
     const blas_algorithm *algorithm, void *workspace, size_t workspace_bytes, cu_stream stream))

typedef struct kva_blas_api {
  void *library;
  size_t (*cublasLtGetVersion)(void);
  KVA_BLAS_FUNCTIONS(KVA_CUDA_MEMBER)
} kva_blas_api;

/* Loads $KVASIR_CUBLASLT_LIBRARY, or libcublasLt.so.13, .12 or .11, also from the usual toolkit folders. KVA_MISSING
 * says what to install. *out_path points to static storage or to the environment. */
KVA_MUST_USE kva_status kva_blas_api_load(kva_diag *diag, kva_blas_api *out_api, const char **out_path);

/* ---- NCCL -------------------------------------------------------------------------------------------------------- */

typedef int nccl_result; /* ncclResult_t and ncclDataType_t */
typedef struct nccl_comm_object *nccl_comm;
typedef struct nccl_unique_id {
  char internal[128];
} nccl_unique_id;
enum {
  NCCL_SUCCESS = 0,
  NCCL_UINT8 = 1,
};

#define KVA_NCCL_FUNCTIONS(X)                                                                                 \
  X(ncclGetVersion, "ncclGetVersion", (int *out_version))                                                     \
  X(ncclGetUniqueId, "ncclGetUniqueId", (nccl_unique_id * out_id))                                            \
  X(ncclCommInitRank, "ncclCommInitRank", (nccl_comm * out_comm, int size, nccl_unique_id id, int rank))      \
  X(ncclCommDestroy, "ncclCommDestroy", (nccl_comm comm))                                                     \
  X(ncclGroupStart, "ncclGroupStart", (void))                                                                 \
  X(ncclGroupEnd, "ncclGroupEnd", (void))                                                                     \
  X(ncclSend, "ncclSend", (const void *data, size_t n, int type, int peer, nccl_comm comm, cu_stream stream)) \
  X(ncclRecv, "ncclRecv", (void *data, size_t n, int type, int peer, nccl_comm comm, cu_stream stream))

typedef struct kva_nccl_api {
  void *library;
  const char *(*ncclGetErrorString)(nccl_result result);
  KVA_NCCL_FUNCTIONS(KVA_CUDA_MEMBER)
} kva_nccl_api;

/* Loads $KVASIR_NCCL_LIBRARY, or libnccl.so.2, also of a Python installation. KVA_MISSING says what to install, or that
 * KVASIR_NCCL_LIBRARY=off forbids it. *out_path points to static storage or to the environment. */
KVA_MUST_USE kva_status kva_nccl_api_load(kva_diag *diag, kva_nccl_api *out_api, const char **out_path);

#endif
