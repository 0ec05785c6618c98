/* The lowest layer, shared by compiler and runtime: libc only. */
#ifndef KVA_BASE_BASE_H
#define KVA_BASE_BASE_H

#include "runtime/base/dtype.h"
#include "runtime/base/memory.h"
#include "runtime/base/parts.h"
#include "runtime/base/platform.h"
#include "runtime/base/status.h"

#endif
