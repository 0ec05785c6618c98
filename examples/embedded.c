/* A model that takes nothing from the system: memory comes from the program's allocator, temporaries lie in its arena,
 * and work runs on its threads. */
#include "lm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 64, THREADS = 2 };

/* ---- memory: an allocator that counts ---------------------------------------------------------------------------- */

static int blocks;

static void *allocate(void *user, size_t bytes, size_t alignment) {
  (void)user;
  blocks++;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void release(void *user, void *memory) {
  (void)user;
  blocks--;
  free(memory);
}

/* ---- threads: each job is split in two; a real program would use its pool ---------------------------------------- */

typedef struct half {
  void (*work)(void *ctx, int64_t begin, int64_t end);
  void *ctx;
  int64_t begin, end;
} half;

static int jobs;

static void *run_half(void *argument) {
  const half *h = argument;
  h->work(h->ctx, h->begin, h->end);
  return NULL;
}

static void run(void *user, int64_t n, void (*work)(void *ctx, int64_t begin, int64_t end), void *ctx) {
  (void)user;
  pthread_t thread;
  half first = {work, ctx, 0, n / THREADS};
  jobs++;
  int started = !pthread_create(&thread, NULL, run_half, &first);
  if (!started) run_half(&first);
  work(ctx, n / THREADS, n);
  if (started) pthread_join(thread, NULL);
}

int main(void) {
  const lm_dims dims = {.B = 1, .T = LENGTH};
  int64_t bytes = lm_forward_arena(&dims);
  void *arena = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
  const kva_allocator allocator = {.allocate = allocate, .release = release};
  const kva_parallel parallel = {.threads = THREADS, .run = run};
  const kva_context_options options = {
      .allocator = &allocator, .parallel = &parallel, .arena = arena, .arena_bytes = (size_t)bytes};
  char message[256];
  lm_context *model;
  if (lm_create(&options, &model, message, sizeof message)) {
    fprintf(stderr, "embedded: %s\n", message);
    return 1;
  }
  int32_t tokens[LENGTH] = {1, 2, 3};
  float *logits = malloc((size_t)lm_forward_logits_bytes(&dims));
  lm_forward_out out = {logits};
  for (int i = 0; i < 3; i++)
    if (lm_forward(model, &(lm_forward_in){tokens}, &out, &dims)) return 1;
  printf("first logit %.9g, %d blocks of memory, %s\n", logits[0], blocks, jobs ? "own threads" : "no threads");
  const lm_dims longer = {.B = 1, .T = LENGTH + 1}; /* more than fits in the arena */
  int32_t more[LENGTH + 1] = {0};
  out.logits = NULL;
  int refused = lm_forward(model, &(lm_forward_in){more}, &out, &longer);
  printf("longer: %s\n", refused ? lm_error(model) : "fits");
  lm_destroy(model);
  printf("%d blocks left\n", blocks);
  free(logits);
  free(arena);
  return refused && blocks == 0 ? 0 : 1;
}
