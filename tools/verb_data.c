/* kvasir data: writes token files from texts, and inspects them. */
#include "tools/cli.h"
#include "runtime/exe/exe.h"
#include "runtime/tokens.h"
#include "tools/corpus.h"
#include "tools/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <unistd.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_data = {
    "data", "[make] FILE|FOLDER... -o FILE.tok | info FILE.tok | decode FILE.tok",
    "make token files for training from texts",
    "make    tokens of all texts, a document a file, into one file for `kvasir train --data tokens:FILE`. Without\n"
    "        --tokenizer every byte is a token (vocabulary 257: 256 ends a document). Folders are read in order of\n"
    "        their paths; .gz files are decompressed; binary files and exact copies are left out.\n"
    "info    header and statistics of a token file; reads all of it and fails if it is damaged\n"
    "decode  tokens as text\n\n"
    "Examples:\n"
    "  kvasir data books/ -o books.tok\n"
    "  kvasir data /usr/share/common-licenses /usr/share/doc --limit 10M -o debian.tok\n"
    "  kvasir data wiki.txt --tokenizer tokenizer.json -o wiki.tok\n"
    "  kvasir data decode books.tok --at 1000 --count 100",
    run};

typedef struct data_options {
  const char *output, *tokenizer, *limit, *end;
  int64_t at, count;
  bool json;
  uint32_t n_paths;
  const char *paths[64];
} data_options;

/* ---- making ------------------------------------------------------------------------------------------------------ */

typedef struct maker {
  const char *output;
  kva_tokenizer *tokenizer;
  kva_token_writer *writer;
  kva_token_ids ids;
  int64_t end, replaced;
  double printed;
  bool terminal;
} maker;

static kva_status add_document(void *user, const char *path, const char *text, size_t size, double share,
                               kva_diag *diag) {
  maker *m = user;
  int64_t replaced;
  if (kva_exe_same_file(path, m->output))
    return kva_error(diag, &(kva_loc){.file = path}, "is one of the texts, and -o would replace it; write elsewhere");
  m->ids.n = 0;
  KVA_TRY(kva_tokenizer_encode(m->tokenizer, text, size, diag, &m->ids, &replaced));
  m->replaced += replaced;
  KVA_TRY(kva_token_writer_add(m->writer, m->ids.n, m->ids.data, diag));
  const uint32_t end = (uint32_t)m->end;
  if (m->end >= 0) KVA_TRY(kva_token_writer_add(m->writer, 1, &end, diag));
  double now = kva_now();
  if (m->terminal && now - m->printed > 0.1) {
    fprintf(stderr, "\r\033[K%3.0f %%  %lld tokens  %.60s", 100 * share,
            (long long)kva_token_writer_info(m->writer)->count, path);
    m->printed = now;
  }
  return KVA_OK;
}

/* "10M": a number with k, M or G. */
static bool parse_size(const char *text, int64_t *out) {
  char *end;
  double v = strtod(text, &end), unit = 1;
  if (*end == 'k' || *end == 'K') unit = 1e3;
  if (*end == 'M') unit = 1e6;
  if (*end == 'G') unit = 1e9;
  end += unit > 1;
  *out = v > 0 && v * unit < 1e18 ? (int64_t)(v * unit) : 0;
  return *text && !*end && *out > 0;
}

static kva_status choose_end(const data_options *o, const kva_tokenizer *t, kva_diag *diag, int64_t *out) {
  *out = o->end ? kva_tokenizer_find(t, o->end) : kva_tokenizer_end(t);
  if (o->end && *out < 0) return kva_error(diag, NULL, "the tokenizer has no token '%s' to end documents", o->end);
  if (*out < 0)
    kva_warn(diag, NULL, "the tokenizer has no usual token to end documents; none is written (--end names one)");
  return KVA_OK;
}

static void print_made(const data_options *o, const maker *m, const kva_token_info *info, const kva_corpus_stats *s) {
  if (o->json) {
    printf("{\"tokens\": %lld, \"documents\": %lld, \"vocab\": %lld, \"bytes\": %lld, \"files\": %lld, "
           "\"binary\": %lld, \"duplicates\": %lld, \"unreadable\": %lld, \"replaced\": %lld, \"hash\": \"%016llx\"}\n",
           (long long)info->count, (long long)info->documents, (long long)info->vocab, (long long)s->bytes,
           (long long)s->files, (long long)s->binary, (long long)s->duplicates, (long long)s->unreadable,
           (long long)m->replaced, (unsigned long long)info->hash);
    return;
  }
  printf(
      "%s: %lld tokens of a vocabulary of %lld, from %lld files with %lld bytes (%.3f bytes a token), hash %016llx\n",
      o->output, (long long)info->count, (long long)info->vocab, (long long)s->files, (long long)s->bytes,
      info->count ? (double)s->bytes / (double)info->count : 0, (unsigned long long)info->hash);
  if (s->binary || s->duplicates || s->unreadable)
    printf("left out: %lld binary files, %lld copies, %lld that cannot be read\n", (long long)s->binary,
           (long long)s->duplicates, (long long)s->unreadable);
  if (m->replaced) printf("%lld places are not UTF-8 and became U+FFFD\n", (long long)m->replaced);
}

static kva_status make_file(const data_options *o, int64_t limit, maker *m, kva_diag *diag) {
  if (o->tokenizer)
    KVA_TRY(kva_tokenizer_load(o->tokenizer, diag, &m->tokenizer));
  else
    m->tokenizer = kva_tokenizer_bytes();
  KVA_TRY(choose_end(o, m->tokenizer, diag, &m->end));
  KVA_TRY(kva_file_prepare(o->output, diag));
  KVA_TRY(kva_token_writer_create(o->output, kva_tokenizer_vocab(m->tokenizer), m->end, diag, &m->writer));
  const kva_corpus corpus = {.n = o->n_paths, .paths = o->paths, .limit = limit, .each = add_document, .user = m};
  kva_corpus_stats stats;
  kva_status status = kva_corpus_read(&corpus, diag, &stats);
  if (m->terminal) fprintf(stderr, "\r\033[K");
  KVA_TRY(status);
  if (!stats.files) return kva_error(diag, NULL, "there is no text in what was given");
  kva_token_info info;
  kva_token_writer *writer = m->writer;
  m->writer = NULL;
  KVA_TRY(kva_token_writer_finish(writer, diag, &info));
  print_made(o, m, &info, &stats);
  return KVA_OK;
}

static kva_status make(const data_options *o, int64_t limit, kva_diag *diag) {
  maker m = {.output = o->output, .terminal = isatty(STDERR_FILENO) && !o->json};
  kva_status status = make_file(o, limit, &m, diag);
  kva_token_writer_destroy(m.writer);
  kva_tokenizer_destroy(m.tokenizer);
  free(m.ids.data);
  return status;
}

/* ---- inspecting -------------------------------------------------------------------------------------------------- */

static void longest_document(const kva_token_file *f, int64_t *least, int64_t *most) {
  *least = *most = 0;
  for (int64_t i = 0, begin = 0, n = 0; f->info.end >= 0 && i < f->info.count; i++) {
    if (kva_tokens_at(f, i) != f->info.end) continue;
    int64_t size = i - begin;
    begin = i + 1;
    *least = n == 0 || size < *least ? size : *least;
    *most = size > *most ? size : *most;
    n++;
  }
}

/* Number of tokens of the vocabulary that occur. */
static int64_t distinct(const kva_token_file *f) {
  bool *seen = calloc((size_t)f->info.vocab, 1);
  int64_t n = 0;
  for (int64_t i = 0; seen && i < f->info.count; i++) {
    uint32_t token = kva_tokens_at(f, i);
    n += !seen[token];
    seen[token] = true;
  }
  free(seen);
  return n;
}

static kva_status info(const data_options *o, const kva_token_file *f, kva_diag *diag) {
  const kva_token_info *i = &f->info;
  KVA_TRY(kva_tokens_verify(o->paths[0], f, diag));
  int64_t least, most, used = distinct(f);
  longest_document(f, &least, &most);
  const char *format = o->json
                           ? "{\"tokens\": %lld, \"type\": \"%s\", \"vocab\": %lld, \"distinct\": %lld, "
                             "\"documents\": %lld, \"end\": %lld, \"shortest\": %lld, \"longest\": %lld, "
                             "\"hash\": \"%016llx\"}\n"
                           : "tokens      %lld, %s\nvocabulary  %lld, of which %lld occur\ndocuments   %lld, ended by "
                             "token %lld; %lld to %lld tokens long\nhash        %016llx, correct\n";
  printf(format, (long long)i->count, kva_dtype_name(i->dtype), (long long)i->vocab, (long long)used,
         (long long)i->documents, (long long)i->end, (long long)least, (long long)most, (unsigned long long)i->hash);
  return KVA_OK;
}

static kva_status decode(const data_options *o, const kva_token_file *f, kva_diag *diag) {
  kva_tokenizer *t = NULL;
  kva_loc loc = {.file = o->paths[0]};
  if (o->at && o->at >= f->info.count)
    return kva_error(diag, &loc, "--at %lld lies behind its last token: it has %lld, the first of which is 0",
                     (long long)o->at, (long long)f->info.count);
  if (o->tokenizer)
    KVA_TRY(kva_tokenizer_load(o->tokenizer, diag, &t));
  else
    t = kva_tokenizer_bytes();
  kva_status status = KVA_OK;
  if (kva_tokenizer_vocab(t) != f->info.vocab)
    status =
        kva_error(diag, &loc, "the file has a vocabulary of %lld, the tokenizer %lld; give its own with --tokenizer",
                  (long long)f->info.vocab, (long long)kva_tokenizer_vocab(t));
  kva_text text = {0};
  for (int64_t i = o->at; !status && i < f->info.count && i - o->at < o->count; i++)
    kva_tokenizer_decode(t, kva_tokens_at(f, i), &text);
  if (text.len) fwrite(text.data, 1, text.len, stdout);
  if (!status) printf("\n");
  kva_text_free(&text);
  kva_tokenizer_destroy(t);
  return status;
}

static kva_status look(const data_options *o, bool as_text, kva_diag *diag) {
  kva_token_file file;
  KVA_TRY(kva_tokens_open(o->paths[0], diag, &file));
  kva_status status = as_text ? decode(o, &file, diag) : info(o, &file, diag);
  kva_tokens_close(&file);
  return status;
}

/* ---- command line ------------------------------------------------------------------------------------------------ */

static int usage_error(const char *what) {
  fprintf(stderr, "kvasir data: %s\nTry: kvasir data --help\n", what);
  return EXIT_USAGE;
}

static int dispatch(const data_options *o, const char *action, int64_t limit) {
  kva_diag *diag = kva_diag_create();
  kva_status status = !strcmp(action, "make") ? make(o, limit, diag) : look(o, !strcmp(action, "decode"), diag);
  int code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  if (status == KVA_OK) kva_diag_print(diag, stderr); /* warnings */
  kva_diag_destroy(diag);
  return code;
}

static int run(int argc, char **argv) {
  static const char *const actions[] = {"make", "info", "decode"};
  data_options o = {.count = 200};
  const kva_option options[] = {
      {"--output", "-o", "FILE.tok", KVA_OPTION_STRING, &o.output, "the token file to make"},
      {"--tokenizer", NULL, "FILE.json", KVA_OPTION_STRING, &o.tokenizer, "a Hugging Face tokenizer.json (bytes)"},
      {"--limit", NULL, "SIZE", KVA_OPTION_STRING, &o.limit, "stop after so many bytes of text: 500k, 10M, 2G"},
      {"--end", NULL, "TOKEN", KVA_OPTION_STRING, &o.end,
       "the token that ends documents (a usual one of the tokenizer)"},
      {"--at", NULL, "N", KVA_OPTION_INT, &o.at, "decode: the first token (0)"},
      {"--count", NULL, "N", KVA_OPTION_INT, &o.count, "decode: how many tokens (200)"},
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &o.json, "one JSON object instead of lines, for make and info"},
  };
  int n, code = kva_cli_parse(&kva_verb_data, argc, argv, options, sizeof options / sizeof *options, o.paths, 64, &n);
  if (code >= 0) return code;
  const char *action = "make";
  for (int i = 0; n && i < 3; i++)
    if (!strcmp(o.paths[0], actions[i])) action = actions[i];
  if (n && !strcmp(action, o.paths[0])) memmove(o.paths, o.paths + 1, (size_t)--n * sizeof *o.paths);
  o.n_paths = (uint32_t)n;
  bool makes = !strcmp(action, "make");
  int64_t limit = 0;
  if (!n) return usage_error("a file is missing");
  if (!makes && n > 1) return usage_error("info and decode take one file");
  if (makes && !o.output) return usage_error("give the file to make with -o FILE.tok");
  if (!makes && (o.output || o.limit || o.end)) return usage_error("--output, --limit and --end are for making files");
  if (o.json && !strcmp(action, "decode")) return usage_error("--json is for make and info");
  if (makes && (kva_cli_replaces_input("data", "-o", o.output, n, o.paths) ||
                kva_cli_replaces_input("data", "-o", o.output, 1, &o.tokenizer)))
    return EXIT_USAGE;
  if (o.end && !o.tokenizer) return usage_error("--end needs a --tokenizer");
  if (o.limit && !parse_size(o.limit, &limit)) return usage_error("--limit is a size such as 500k, 10M or 2G");
  if (makes) kva_cli_clean_at_signal(o.output);
  return dispatch(&o, action, limit);
}
