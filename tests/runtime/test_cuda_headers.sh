#!/usr/bin/env bash
# runtime/cuda/api.h declares NVIDIA's interfaces itself. Where a toolkit is installed, its headers must agree: every
# function's type, every value, every size.
set -euo pipefail
include=
for folder in "${CUDA_HOME:-/nowhere}/include" /usr/local/cuda/include /usr/include; do
  [ ! -f "$folder/cuda.h" ] || [ ! -f "$folder/cublasLt.h" ] || { include=$folder && break; }
done
[ -n "$include" ] || { echo "SKIP: no cuda.h and cublasLt.h of a CUDA toolkit" && exit 77; }
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null || { echo "SKIP: no C++ compiler to compare types with" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# C++: types of functions can be compared after replacing each of our types by NVIDIA's name for it. The table's text
# is compiled with the types' names defined as NVIDIA's.
sed -n '/^#define KVA_CUDA_FUNCTIONS/,/[^\\]$/p; /^#define KVA_CUDA_OPTIONAL_FUNCTIONS/,/[^\\]$/p
  /^#define KVA_BLAS_FUNCTIONS/,/[^\\]$/p; /^#define KVA_NCCL_FUNCTIONS/,/[^\\]$/p' runtime/cuda/api.h >"$work/tables.h"
sed -n '/^enum {/,/^};/p' runtime/cuda/api.h >"$work/enums.h"
[ "$(grep -c 'X(' "$work/tables.h")" -gt 50 ] || { echo "FAILED: the tables were not found" && exit 1; }
cat >"$work/check.cpp" <<'CPP'
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <cuda.h>
#include <cublasLt.h>
#if __has_include(<nccl.h>) // toolkits do not bring it
#include <nccl.h>
#endif
namespace ours {
#include "enums.h"
}
// Enumerations are int in our declarations; everything else must be the same type.
template <class T, bool = std::is_enum<T>::value> struct plain { using type = T; };
template <class T> struct plain<T, true> { using type = int; };
template <class T> struct plain<T *, false> { using type = typename plain<T>::type *; };
template <class T> struct plain<const T, false> { using type = const typename plain<T>::type; };
template <class T> using plain_t = typename plain<typename std::remove_cv<T>::type>::type;
template <class F> struct shape;
template <class R, class... A> struct shape<R(A...)> { using type = int(plain_t<A>...); };
typedef int cu_result, blas_status;
typedef CUdevice cu_device; typedef CUdeviceptr cu_pointer; typedef CUcontext cu_context; typedef CUmodule cu_module;
typedef CUfunction cu_function; typedef CUstream cu_stream; typedef CUevent cu_event; typedef CUgraph cu_graph;
typedef CUgraphExec cu_graph_exec; typedef CUtensorMap cu_tensor_map;
typedef cublasLtHandle_t blas_handle; typedef cublasLtMatmulDesc_t blas_desc; typedef cublasLtMatrixLayout_t blas_layout;
typedef cublasLtMatmulPreference_t blas_preference; typedef cublasLtMatmulAlgo_t blas_algorithm;
typedef cublasLtMatmulHeuristicResult_t blas_heuristic;
#include "tables.h"
#define CHECK(name, symbol, params) \
  static_assert(std::is_same<shape<decltype(name)>::type, shape<int params>::type>::value, #name);
KVA_CUDA_FUNCTIONS(CHECK)
KVA_CUDA_OPTIONAL_FUNCTIONS(CHECK)
KVA_BLAS_FUNCTIONS(CHECK)
#ifdef NCCL_UNIQUE_ID_BYTES
typedef ncclComm_t nccl_comm; typedef ncclUniqueId nccl_unique_id;
KVA_NCCL_FUNCTIONS(CHECK)
static_assert((int)ours::NCCL_SUCCESS == (int)ncclSuccess && (int)ours::NCCL_UINT8 == (int)ncclUint8, "");
static_assert(sizeof(ncclUniqueId) == 128, "");
#endif
#define VALUE(a, b) static_assert((int)ours::a == (int)b, #a);
VALUE(CU_SUCCESS, CUDA_SUCCESS) VALUE(CU_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE)
VALUE(CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY) VALUE(CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE)
VALUE(CU_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_PTX) VALUE(CU_ERROR_NOT_FOUND, CUDA_ERROR_NOT_FOUND)
VALUE(CU_ERROR_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
VALUE(CU_ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
VALUE(CU_ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
VALUE(CU_ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
VALUE(CU_ATTRIBUTE_COOPERATIVE_LAUNCH, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)
VALUE(CU_FUNCTION_SHARED_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
VALUE(CU_FUNCTION_LOCAL_BYTES, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES) VALUE(CU_FUNCTION_REGISTERS, CU_FUNC_ATTRIBUTE_NUM_REGS)
VALUE(CU_JIT_VERBOSE_LOG, CU_JIT_LOG_VERBOSE)
VALUE(CU_FUNCTION_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
VALUE(CU_JIT_INFO_LOG, CU_JIT_INFO_LOG_BUFFER) VALUE(CU_JIT_INFO_LOG_SIZE, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
VALUE(CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BUFFER) VALUE(CU_JIT_ERROR_LOG_SIZE, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
VALUE(CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
VALUE(CU_MAP_U8, CU_TENSOR_MAP_DATA_TYPE_UINT8) VALUE(CU_MAP_U16, CU_TENSOR_MAP_DATA_TYPE_UINT16)
VALUE(CU_MAP_U32, CU_TENSOR_MAP_DATA_TYPE_UINT32) VALUE(CU_MAP_I32, CU_TENSOR_MAP_DATA_TYPE_INT32)
VALUE(CU_MAP_U64, CU_TENSOR_MAP_DATA_TYPE_UINT64) VALUE(CU_MAP_I64, CU_TENSOR_MAP_DATA_TYPE_INT64)
VALUE(CU_MAP_F16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16) VALUE(CU_MAP_F32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32)
VALUE(CU_MAP_F64, CU_TENSOR_MAP_DATA_TYPE_FLOAT64) VALUE(CU_MAP_BF16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
VALUE(CU_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE) VALUE(CU_MAP_SWIZZLE_32, CU_TENSOR_MAP_SWIZZLE_32B)
VALUE(CU_MAP_SWIZZLE_64, CU_TENSOR_MAP_SWIZZLE_64B) VALUE(CU_MAP_SWIZZLE_128, CU_TENSOR_MAP_SWIZZLE_128B)
VALUE(CU_MAP_L2_128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B)
VALUE(BLAS_SUCCESS, CUBLAS_STATUS_SUCCESS) VALUE(BLAS_COMPUTE_F32, CUBLAS_COMPUTE_32F)
VALUE(BLAS_TYPE_F32, CUDA_R_32F) VALUE(BLAS_TYPE_F16, CUDA_R_16F) VALUE(BLAS_TYPE_BF16, CUDA_R_16BF)
VALUE(BLAS_DESC_TRANSPOSE_A, CUBLASLT_MATMUL_DESC_TRANSA) VALUE(BLAS_DESC_TRANSPOSE_B, CUBLASLT_MATMUL_DESC_TRANSB)
VALUE(BLAS_LAYOUT_BATCH, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
VALUE(BLAS_LAYOUT_BATCH_STEP, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
VALUE(BLAS_PREFERENCE_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
VALUE(BLAS_PREFERENCE_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
static_assert((int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == ours::BLAS_PREFERENCE_ALIGNMENT_A + 3, "");
static_assert((int)CUBLAS_OP_N == 0 && (int)CUBLAS_OP_T == 1 && CU_STREAM_NON_BLOCKING == 1, "");
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96 && sizeof(cublasLtMatmulAlgo_t) == 64 &&
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) == 64 &&
              offsetof(cublasLtMatmulHeuristicResult_t, state) == 72 && sizeof(CUtensorMap) == 128 &&
              alignof(CUtensorMap) >= 64, "");
CPP
"$compiler" -std=c++14 -fsyntax-only -I"$work" -I"$include" "$work/check.cpp"

# The exported names, where the toolkit brings libraries to look into.
names() { sed -n "/define $1/,/[^\\\\]\$/p" "$work/tables.h" | grep -o '"[A-Za-z0-9_]*"' | tr -d '"'; }
check_names() { # LIBRARY TABLE...
  local library=$1 name
  shift
  nm -D --defined-only "$library" | awk '{print $3}' | sed 's/@.*//' | sort >"$work/exports"
  for name in $(for table in "$@"; do names "$table"; done); do
    grep -qx "$name" "$work/exports" || { echo "FAILED: $library does not export $name" && exit 1; }
  done
}
for lib in "$include/../lib64" "$include/../lib" "$include/../targets/x86_64-linux/lib"; do
  [ ! -f "$lib/stubs/libcuda.so" ] || check_names "$lib/stubs/libcuda.so" KVA_CUDA_FUNCTIONS KVA_CUDA_OPTIONAL_FUNCTIONS
  [ ! -f "$lib/libcublasLt.so" ] || check_names "$lib/libcublasLt.so" KVA_BLAS_FUNCTIONS
done
echo "agrees with $include"
