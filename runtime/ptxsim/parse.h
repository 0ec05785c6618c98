/* The parser's state, private to the simulator. parse.c parses modules and declarations, parse_body.c kernels. */
#ifndef KVA_RUNTIME_PTXSIM_PARSE_H
#define KVA_RUNTIME_PTXSIM_PARSE_H

#include "runtime/ptxsim/lex.h"

#include <string.h>

/* Limits on the input, so that a malformed text cannot exhaust memory. */
enum {
  PTX_MAX_TEXT = 64 << 20,
  PTX_MAX_REGISTERS = 1 << 20, /* declared in one kernel */
  PTX_MAX_SLOTS = 1 << 17,     /* used by one kernel */
  PTX_MAX_SHARED = 227 << 10,  /* sm_90: bytes of one CTA */
  PTX_MAX_LOCAL = 512 << 10,   /* bytes of one thread */
  PTX_MAX_PARAMS = 32764,      /* bytes */
  PTX_MAX_VARIABLE = 64 << 20,
  PTX_MAX_SCOPES = 64,
};

typedef enum ptx_symbol_kind { PTX_SYMBOL_REG, PTX_SYMBOL_RANGE, PTX_SYMBOL_VARIABLE } ptx_symbol_kind;
typedef struct ptx_symbol {
  ptx_symbol_kind kind;
  ptx_type type;
  uint32_t slot;   /* PTX_NONE: not used yet */
  uint32_t *slots; /* for a range of registers */
  uint32_t n;
  ptx_space space;
  uint64_t address, size, align;
  bool relocate;                /* an offset from the start of dynamic shared memory */
  const kva_ptx_kernel *placed; /* the kernel that assigned the address; a module's shared variables get one in each
                                   kernel that uses them */
} ptx_symbol;

typedef struct ptx_scope ptx_scope;
struct ptx_scope {
  ptx_scope *parent;
  kva_map *symbols;
};

typedef struct ptx_parser {
  ptx_lexer lexer;
  ptx_token token; /* the next one */
  kva_ptx_module *module;
  kva_arena *arena;
  kva_diag *diag;
  ptx_scope *scope;
  uint32_t depth;
  ptx_builder builder; /* for the current kernel */
  kva_map *labels;     /* name to instruction index + 1 */
  uint64_t n_registers, variable_bytes;
  uint32_t source_line; /* line of the last .loc */
} ptx_parser;

#define PTX_PARSE_ERROR(p, ...) \
  kva_ptx_error_at((p)->module, (p)->diag, KVA_INVALID, (p)->token.line, (p)->token.column, __VA_ARGS__)

void kva_ptx_advance(ptx_parser *p);
bool kva_ptx_is(const ptx_parser *p, const char *word); /* whether the next token is this word or character */
bool kva_ptx_accept(ptx_parser *p, const char *word);
KVA_MUST_USE kva_status kva_ptx_expect(ptx_parser *p, const char *word);
/* Reports an error that names the next token. */
kva_status kva_ptx_unexpected(ptx_parser *p, const char *wanted);
KVA_MUST_USE kva_status kva_ptx_parse_uint(ptx_parser *p, uint64_t max, const char *what, uint64_t *out);
void kva_ptx_skip_line(ptx_parser *p);

ptx_symbol *kva_ptx_find_symbol(const ptx_parser *p, const char *name, size_t n);
KVA_MUST_USE kva_status kva_ptx_declare(ptx_parser *p, const ptx_token *name, ptx_symbol **out_symbol);
/* Parses a variable declaration from its state space (.shared, .local, .global, .const) to the semicolon. */
KVA_MUST_USE kva_status kva_ptx_parse_variables(ptx_parser *p, bool external);
/* Parses the body of the builder's kernel, from { to }. */
KVA_MUST_USE kva_status kva_ptx_parse_body(ptx_parser *p);

#endif
