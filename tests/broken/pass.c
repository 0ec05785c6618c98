/* The harness as debug builds have it, whatever build this is. */
#ifndef KVA_DEBUG
#define KVA_DEBUG 1
#endif
#include "ir/pass.c"
