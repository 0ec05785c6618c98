/* Dynamic lookup of MPI, and the constants of its two binary interfaces. */
#include "runtime/comm_mpi.h"

#include "runtime/comm.h"

#include <dlfcn.h>
#include <stdlib.h>

/* A binary interface. Handles are objects of the library, by name, or numbers. */
typedef struct interface {
  const char *mark; /* in the text of MPI_Get_library_version */
  const char *world_object, *byte_object, *errors_return_object;
  intptr_t world, byte, errors_return, in_place, status_ignore;
} interface;

#define OPEN_MPI                                                         \
  .world_object = "ompi_mpi_comm_world", .byte_object = "ompi_mpi_byte", \
  .errors_return_object = "ompi_mpi_errors_return", .in_place = 1
#define MPICH .world = 0x44000000, .byte = 0x4c00010d, .errors_return = 0x54000001, .in_place = -1, .status_ignore = 1
static const interface interfaces[] = {{.mark = "Open MPI", OPEN_MPI},
                                       {.mark = "MPICH", MPICH},
                                       {.mark = "Intel(R) MPI", MPICH},
                                       {.mark = "MVAPICH", MPICH}};
static const char *const open_mpi_names[] = {"libmpi.so.40", "libmpich.so.12", "libmpi.so.12"};
static const char *const mpich_names[] = {"libmpich.so.12", "libmpi.so.12", "libmpi.so.40"};
enum { N_INTERFACES = sizeof interfaces / sizeof *interfaces, N_NAMES = sizeof mpich_names / sizeof *mpich_names };

static int count_in(const char *variable) {
  const char *text = getenv(variable);
  return text ? atoi(text) : 0;
}

int kva_comm_launched(void) {
  int open_mpi = count_in("OMPI_COMM_WORLD_SIZE"), pmi = count_in("PMI_SIZE");
  return open_mpi > 1 ? open_mpi : pmi > 1 ? pmi : 1;
}

/* Open MPI's plug-ins look up symbols of the library, so they must be global. */
static void *open_library(const char **out_name) {
  const char *chosen = getenv("KVASIR_MPI_LIBRARY");
  const char *const *names = getenv("PMI_SIZE") && !getenv("OMPI_COMM_WORLD_SIZE") ? mpich_names : open_mpi_names;
  if (chosen && *chosen) return dlopen(*out_name = chosen, RTLD_NOW | RTLD_GLOBAL);
  void *library = NULL;
  for (int i = 0; !library && i < N_NAMES; i++) library = dlopen(*out_name = names[i], RTLD_NOW | RTLD_GLOBAL);
  return library;
}

static const char *look_up(void *library, kva_mpi *m) {
  static const struct {
    const char *name;
    size_t offset;
  } rows[] = {
#define ROW(name, params) {"MPI_" #name, offsetof(kva_mpi, name)},
      KVA_MPI_FUNCTIONS(ROW)
#undef ROW
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    void *f = dlsym(library, rows[i].name);
    if (!f) return rows[i].name;
    memcpy((char *)m + rows[i].offset, &f, sizeof f);
  }
  return NULL;
}

static kva_mpi_handle handle(void *library, const char *object, intptr_t number) {
  return object ? dlsym(library, object) : (void *)number;
}

static const interface *find_interface(const char *version) {
  for (int i = 0; i < N_INTERFACES; i++)
    if (strstr(version, interfaces[i].mark)) return &interfaces[i];
  return NULL;
}

static kva_status no_library(kva_diag *diag, const char *why) {
  return kva_fail(diag, KVA_MISSING, NULL,
                  "a mesh of several processes needs MPI, which is not found: %s; install Open MPI or MPICH (Debian: "
                  "apt-get install openmpi-bin, or mpich), or set KVASIR_MPI_LIBRARY to its libmpi.so",
                  why ? why : "no library");
}

kva_status kva_mpi_load(kva_diag *diag, kva_mpi *out_mpi) {
  const char *missing;
  char text[KVA_MPI_TEXT] = "";
  int len = 0;
  *out_mpi = (kva_mpi){0};
  void *library = open_library(&out_mpi->path);
  if (!library) return no_library(diag, dlerror());
  if ((missing = look_up(library, out_mpi)))
    return kva_fail(diag, KVA_MISSING, NULL, "%s has no function %s: expected a library of MPI 3 or newer",
                    out_mpi->path, missing);
  const interface *i = out_mpi->Get_library_version(text, &len) == KVA_MPI_SUCCESS ? find_interface(text) : NULL;
  snprintf(out_mpi->version, sizeof out_mpi->version, "%.*s", (int)strcspn(text, "\n"), text);
  if (!i)
    return kva_fail(
        diag, KVA_MISSING, NULL,
        "%s is an MPI that Kvasir does not know: expected Open MPI, MPICH, Intel MPI or MVAPICH, found '%s'",
        out_mpi->path, out_mpi->version);
  out_mpi->world = handle(library, i->world_object, i->world);
  out_mpi->byte = handle(library, i->byte_object, i->byte);
  out_mpi->errors_return = handle(library, i->errors_return_object, i->errors_return);
  out_mpi->in_place = (void *)i->in_place;
  out_mpi->status_ignore = (void *)i->status_ignore;
  if (out_mpi->world && out_mpi->byte && out_mpi->errors_return) return KVA_OK;
  return kva_fail(diag, KVA_MISSING, NULL, "%s (%s) lacks the objects of Open MPI's interface", out_mpi->path,
                  out_mpi->version);
}
