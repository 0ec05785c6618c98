/* The lowest layer, below compiler and runtime alike: libc only. */
#ifndef KVA_BASE_BASE_H
#define KVA_BASE_BASE_H

#include "runtime/base/dtype.h"
#include "runtime/base/memory.h"
#include "runtime/base/platform.h"
#include "runtime/base/status.h"

#endif
