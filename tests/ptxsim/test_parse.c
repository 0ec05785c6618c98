/* The parser: what it accepts, what it rejects and where, and that no text makes it fail otherwise. */
#include "tests/ptxsim/ptx_test.h"

static const char body_head[] = PTX_HEAD ".entry k(.param .u64 a) {\n.reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 "
                                         "%f<4>; .reg .pred %p<4>; .reg .b16 %h<3>;\n";
enum { BODY = PTX_HEAD_LINES + 3 };

static void rejects(const char *text, kva_status status, uint32_t line, const char *part) {
  kva_diag *diag = kva_diag_create();
  kva_ptx_module *m = NULL;
  kva_status got = kva_ptx_module_create(text, strlen(text), "bad.ptx", diag, &m);
  kva_loc loc = {0};
  const char *message = kva_diag_count(diag) ? kva_diag_message(diag, 0, NULL, &loc) : "";
  if (got != status || loc.line != line || !strstr(message, part))
    fprintf(stderr, "%s\n-> %d, line %u: %s\n", text, got, loc.line, message);
  assert_int_equal(got, status);
  assert_null(m);
  assert_non_null(strstr(message, part));
  assert_int_equal(loc.line, line);
  assert_true(loc.column > 0);
  kva_diag_destroy(diag);
}

static void rejects_statement(const char *statement, kva_status status, const char *part) {
  kva_text text = {0};
  kva_text_add(&text, "%s%s\nret; }\n", body_head, statement);
  rejects(text.data, status, BODY, part);
  kva_text_free(&text);
}

static void modules(void **state) {
  (void)state;
  rejects("", KVA_INVALID, 1, ".version");
  rejects("hello", KVA_INVALID, 1, ".version");
  rejects(".version 2.0\n.target sm_90", KVA_UNSUPPORTED, 1, "PTX version");
  rejects(".version 8.3\n.target sm_35", KVA_UNSUPPORTED, 2, "sm_50");
  rejects(".version 8.3\n.target sm_90\n.address_size 32\n", KVA_INVALID, 4, "64");
  rejects(PTX_HEAD ".entry", KVA_INVALID, 4, "name of the kernel");
  rejects(PTX_HEAD ".entry k() {", KVA_INVALID, 4, "'}'");
  rejects(PTX_HEAD ".entry k() { ret; }\n.entry k() { ret; }", KVA_INVALID, 5, "two kernels");
  rejects(PTX_HEAD ".entry k(.param .u64 a, .param .u64 a) { ret; }", KVA_INVALID, 4, "declared twice");
  rejects(PTX_HEAD ".entry k(.param .b8 a[40000]) { ret; }", KVA_INVALID, 4, "parameters take");
  rejects(PTX_HEAD ".global .align 3 .b8 x[4];", KVA_INVALID, 4, "power of two");
  rejects(PTX_HEAD ".global .b8 x[100000000];", KVA_INVALID, 4, "an array size");
  rejects(PTX_HEAD ".global .u8 x[2] = {1, 2, 3};", KVA_INVALID, 4, "more initial values");
  rejects(PTX_HEAD ".entry k() { .shared .b8 x[300000]; ret; }", KVA_INVALID, 4, "shared memory");
  rejects(PTX_HEAD "/* open", KVA_INVALID, 4, "comment");
  rejects(PTX_HEAD ".pragma \"open", KVA_INVALID, 4, "string");
  rejects(PTX_HEAD "\x01", KVA_INVALID, 4, "character");
  rejects(PTX_HEAD ".entry k() { .loc 1 \x01 1", KVA_INVALID, 4, "character"); /* what skips text ends there */
  rejects(PTX_HEAD ".section .debug { \x01 }", KVA_INVALID, 4, "character");
  rejects(PTX_HEAD ".func f() \x01 {}", KVA_INVALID, 4, "character");
}

static void statements(void **state) {
  (void)state;
  rejects_statement("frobnicate.b32 %r1, %r2;", KVA_UNSUPPORTED, "unsupported instruction 'frobnicate.b32'");
  rejects_statement("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];",
                    KVA_UNSUPPORTED, "unsupported instruction 'st.async");
  rejects_statement("mbarrier.toggle.shared.b64 [%r1], 1;", KVA_UNSUPPORTED, "unsupported instruction 'mbarrier");
  rejects_statement("cp.async.bulk.commit_group 1;", KVA_INVALID, "takes 0 operands");
  rejects_statement("setmaxnreg.inc.sync.aligned.u32 25;", KVA_INVALID, "a multiple of 8 from 24 to 256");
  rejects_statement("wgmma.wait_group.sync.aligned -1;", KVA_INVALID, "a number of groups");
  rejects_statement("ld.shared.u32 %r1, [%r2, {%r1}];", KVA_INVALID, "without coordinates");
  rejects_statement("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1}, %d1, %d2, 1, 1, 1, 0, 0;", KVA_INVALID,
                    "number of registers");
  rejects_statement("wgmma.fence.sync;", KVA_UNSUPPORTED, "unsupported instruction 'wgmma");
  rejects_statement("cp.async.bulk.tensor.2d.shared::cluster.global.tile [%r1], [%d1];", KVA_UNSUPPORTED,
                    "cp.async.bulk");
  rejects_statement("call (%r1), f, (%r2);", KVA_UNSUPPORTED, "'call'");
  rejects_statement("add.rz.f32 %f1, %f2, %f3;", KVA_UNSUPPORTED, "add.rz.f32");
  rejects_statement("add.s32.sloppy %r1, %r2, %r3;", KVA_UNSUPPORTED, "sloppy");
  rejects_statement("add.s32 %r1, %r2;", KVA_INVALID, "takes 3 operands, found 2");
  rejects_statement("add.s32 %r1, %r2, %d1;", KVA_INVALID, "%d1 is .b64");
  rejects_statement("add.s32 %r1, %r2, %r9;", KVA_INVALID, "'%r9' is not declared");
  rejects_statement("add.s32 %r1, %r2, 0f3F800000;", KVA_INVALID, "an integer");
  rejects_statement("add.f32 %f1, %f2, 3;", KVA_INVALID, "floating-point constant");
  rejects_statement("add.s32 5, %r2, %r3;", KVA_INVALID, "a register");
  rejects_statement("add.s32 %r1, %r2, %r3 }", KVA_INVALID, "';'");
  rejects_statement("add.s32 %r1 %r2, %r3;", KVA_INVALID, "';'");
  rejects_statement("ld.global.u32 %r1, %d1;", KVA_INVALID, "address in brackets");
  rejects_statement("ld.global.v2.u32 %r1, [%d1];", KVA_INVALID, "as many registers");
  rejects_statement("ld.global.v4.f64 {%d1, %d2, %d3, %d4}, [%d1];", KVA_UNSUPPORTED, "v4.f64");
  rejects_statement("ld.global.u32 %r1, [%h1];", KVA_INVALID, "is not declared");
  rejects_statement("@%r1 add.s32 %r1, %r2, %r3;", KVA_INVALID, "predicate register");
  rejects_statement("setp.lt.s32 %r1, %r2, %r3;", KVA_INVALID, "a predicate register");
  rejects_statement("mov.b64 %d1, {%r1, %r2, %r3};", KVA_INVALID, "2 or 4");
  rejects_statement("bra NOWHERE;", KVA_INVALID, "'NOWHERE' is not defined");
  rejects_statement("A: A: ret;", KVA_INVALID, "defined twice");
  rejects_statement(".reg .b32 %r<3>; .reg .b32 %r<4>;", KVA_INVALID, "declared twice");
  rejects_statement(".reg .b32 %x<4000000000>;", KVA_INVALID, "a number of registers");
  rejects_statement(".reg .v4 .b32 %x;", KVA_INVALID, "register type");
  rejects_statement("mov.f32 %f1, 0f3F80;", KVA_INVALID, "hexadecimal digits");
  rejects_statement("mov.u64 %d1, 99999999999999999999;", KVA_INVALID, "64 bits");
  rejects_statement("mov.u32 %r1, 12x;", KVA_INVALID, "letter");
  rejects_statement("cvt.s32.f32 %r1, %f1;", KVA_UNSUPPORTED, "cvt.s32.f32");
  rejects_statement("shfl.bfly.b32 %r1, %r2, 1, 31;", KVA_UNSUPPORTED, "shfl.bfly");
  rejects_statement("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f2};", KVA_UNSUPPORTED,
                    "m8n8k4");
  rejects_statement("cp.async.ca.shared.global [%d1], [%d2], 5;", KVA_INVALID, "4, 8 or 16");
}

static void directives_and_comments(void **state) {
  (void)state;
  kva_ptx_module *m =
      ptx_parse("// head\n.version 7.8\n.target sm_80, debug\n.address_size 64\n.file 1 \"a.cu\"\n"
                ".visible .global .align 4 .f32 x[2] = {0f3F800000, 2.5};\n.global .u64 px = x;\n.global .align 4 .b8 "
                "y[2][3] = {{1, 2, 3}, {4, 5, 6}};\n"
                ".extern .func (.param .b32 r) printf(.param .b64 a);\n"
                ".visible .entry a(\n\t.param .u64 .ptr .global .align 16 p, /* in\nbetween */ .param .align 8 .b8 "
                "q[40], .param .f32 s)\n"
                ".maxntid 128, 2, 1\n.minnctapersm 2\n.pragma \"nounroll\";\n{\n.reg .b32 %r<3>;\n.reg .b64 %SP;\n.loc "
                "1 2 3\n.loc 1 2 3, function_name x, inlined_at 1 2 3\n"
                ".pragma \"nounroll\";\n$L__BB0_1: // label\nmov.b32 %r1, 0x10U; mov.b32 %r2, 0b101; ret;\n}\n"
                ".weak .entry b() .reqntid 32 { ret; }\n.section .debug_abbrev\n{\n.b8 1\n}\n");
  assert_int_equal(kva_ptx_module_n_kernels(m), 2);
  const kva_ptx_kernel_info *info = kva_ptx_kernel_get_info(kva_ptx_module_get_kernel(m, "a"));
  assert_int_equal(info->n_params, 3);
  assert_int_equal(info->params[0].pointer, true);
  assert_int_equal(info->params[1].offset, 8);
  assert_int_equal(info->params[2].offset, 48);
  assert_int_equal(info->max_threads[0] * info->max_threads[1], 256);
  info = kva_ptx_kernel_get_info(kva_ptx_module_get_kernel(m, "b"));
  assert_int_equal(info->required_threads[0], 32);
  float x[2];
  const void *px;
  memcpy(x, kva_ptx_module_get_global(m, "x", NULL), sizeof x);
  assert_true(x[0] == 1.0f && x[1] == 2.5f);
  memcpy(&px, kva_ptx_module_get_global(m, "px", NULL), sizeof px);
  assert_ptr_equal(px, kva_ptx_module_get_global(m, "x", NULL));
  assert_memory_equal(kva_ptx_module_get_global(m, "y", NULL), "\1\2\3\4\5\6", 6);
  assert_null(kva_ptx_module_get_kernel(m, "c"));
  kva_ptx_module_destroy(m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(modules),
      cmocka_unit_test(statements),
      cmocka_unit_test(directives_and_comments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
