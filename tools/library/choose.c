/* What a user leaves open: where compiled code is kept, and what a device is compiled for. */
#include "runtime/cuda/query.h"
#include "runtime/exe/options.h"
#include "tools/library/library.h"

#include <stdlib.h>

const kva_cache *kva_cache_in(kva_arena *arena, const char *folder) {
  enum { MAX_BYTES = 256 << 20 };
  kva_cache *cache = KVA_NEW(arena, kva_cache);
  *cache = (kva_cache){folder, MAX_BYTES};
  return cache;
}

const kva_cache *kva_user_cache(kva_arena *arena, const char **out_reason) {
  const char *own = getenv("KVASIR_CACHE"), *shared = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  bool is_off = own && !strcmp(own, "off");
  const char *folder = NULL;
  if (own && *own)
    folder = is_off ? NULL : kva_arena_strdup(arena, own);
  else if (shared && *shared == '/') /* the specification ignores relative paths */
    folder = kva_arena_printf(arena, "%s/kvasir", shared);
  else if (home && *home)
    folder = kva_arena_printf(arena, "%s/.cache/kvasir", home);
  if (out_reason) *out_reason = is_off ? "KVASIR_CACHE=off" : "there is no home folder";
  return folder ? kva_cache_in(arena, folder) : NULL;
}

/* cuda uses the library if it is present; other devices use a stand-in only on request. */
static kva_status choose_gemm(const char *device, const char *gemm, kva_diag *diag, kva_target_options *target) {
  const char *path;
  KVA_TRY(kva_gemm_named(gemm, diag, target));
  if (gemm || !device || strcmp(device, "cuda") != 0) return KVA_OK;
  kva_diag *why = kva_diag_create();
  target->library_gemm = kva_gpu_find_blas(why, &path) == KVA_OK;
  if (!target->library_gemm)
    kva_warn(diag, NULL, "%s; matrix products are generated", kva_diag_message(why, 0, NULL, NULL));
  kva_diag_destroy(why);
  return KVA_OK;
}

kva_status kva_choose_target(const char *device, const char *target, const char *gemm, kva_diag *diag,
                             kva_target_options *out) {
  const char *arch;
  KVA_TRY(kva_device_check(device, diag, &arch));
  out->arch = target ? target : arch;
  return choose_gemm(device, gemm, diag, out);
}

static int64_t available_memory(void) {
  return kva_machine_memory("").available;
}

/* The smaller of the two. */
static void limit_room(int64_t bytes, const char *what, kva_room *room) {
  if (!bytes || (room->whole && room->whole <= bytes)) return;
  room->whole = bytes;
  room->what = what;
}

kva_status kva_choose_room(const char *device, kva_diag *diag, kva_room *out) {
  const char *own = getenv("KVASIR_MACHINE_MEMORY");
  *out = (kva_room){0};
  int64_t bytes = 0;
  if (own && strcmp(own, "off") != 0 && !kva_parse_bytes(own, &bytes))
    return kva_error(diag, NULL, "KVASIR_MACHINE_MEMORY must be a number of bytes like 40G, or off; found '%s'", own);
  if (own && !bytes) return KVA_OK;
  if (device && !strcmp(device, "cuda")) {
    kva_gpu_report gpus;
    kva_gpu_query(&gpus);
    *out = (kva_room){gpus.gpus[0].memory, kva_gpu_available_memory, ", the memory of the GPU"};
  } else {
    *out = (kva_room){kva_machine_memory("").whole, available_memory, ", the memory and swap of this machine"};
  }
  limit_room(bytes, ", as $KVASIR_MACHINE_MEMORY says", out);
  return KVA_OK;
}

static kva_status check_device(void *job, kva_diag *diag) {
  const char *arch;
  return kva_device_check(job, diag, &arch);
}

kvasir_status kvasir_device_check(const char *device, kvasir_messages **out_messages) {
  return kva_library_call(check_device, (void *)(uintptr_t)device, out_messages);
}
