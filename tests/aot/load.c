/* Loads a compiled model with nothing but its library: load LIBRARY PREFIX INPUT OUTPUT OUTPUT_BYTES [EXTENT...] runs
 * <PREFIX>_forward on one input of bare elements, three times, and writes the output. Says how often the last run
 * allocated, where tests/aot/count.c is preloaded. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*create_fn)(const void *options, void **out_context, char *message, size_t size);
typedef int (*forward_fn)(void *context, const void *in, void *out, const void *dims);
typedef const char *(*error_fn)(const void *context);
typedef void (*destroy_fn)(void *context);
typedef long (*count_fn)(void);

static void fail(const char *why) {
  fprintf(stderr, "load: %s\n", why);
  exit(1);
}

static void *find(void *library, const char *prefix, const char *name) {
  char symbol[256];
  snprintf(symbol, sizeof symbol, "%s_%s", prefix, name);
  void *f = dlsym(library, symbol);
  if (!f) fail(dlerror());
  return f;
}

static void *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) fail("cannot read the input");
  long size = ftell(file);
  void *data = aligned_alloc(64, ((size_t)size / 64 + 1) * 64);
  rewind(file);
  if (!data || fread(data, 1, (size_t)size, file) != (size_t)size) fail("cannot read the input");
  fclose(file);
  return data;
}

int main(int argc, char **argv) {
  if (argc < 6) fail("too few arguments");
  int64_t dims[8] = {0};
  for (int i = 6; i < argc && i < 14; i++) dims[i - 6] = atoll(argv[i]);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(dlerror());
  create_fn create = (create_fn)find(library, argv[2], "create");
  forward_fn forward = (forward_fn)find(library, argv[2], "forward");
  error_fn error = (error_fn)find(library, argv[2], "error");
  count_fn count = (count_fn)dlsym(RTLD_DEFAULT, "count_allocations");
  size_t size = (size_t)atoll(argv[5]);
  void *context, *in[] = {read_file(argv[3])}, *out[] = {calloc(size, 1)};
  char message[256];
  if (create(NULL, &context, message, sizeof message)) fail(message);
  long before = 0;
  for (int run = 0; run < 3; run++) {
    before = count ? count() : 0;
    if (forward(context, in, out, dims)) fail(error(context));
  }
  long allocations = count ? count() - before : 0;
  if (count) printf("%ld allocations in the last run, %ld in all\n", allocations, before);
  FILE *file = fopen(argv[4], "wb");
  if (!file || fwrite(out[0], 1, size, file) != size || fclose(file)) fail("cannot write the output");
  ((destroy_fn)find(library, argv[2], "destroy"))(context);
  return 0;
}
