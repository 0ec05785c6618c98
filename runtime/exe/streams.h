/* Standard input, output and error of a program: `kvasir` and the executables that it builds. */
#ifndef KVA_RUNTIME_EXE_STREAMS_H
#define KVA_RUNTIME_EXE_STREAMS_H

/* Opens descriptors 0 to 2 on /dev/null where they are closed, so that no file of the program gets their numbers. Comes
 * before anything is opened; ends the process with EXIT_MACHINE if there is no /dev/null. Exceeding a file size limit
 * becomes a write error from then on, which has a message and leaves no temporary file. */
void kva_streams_open(void);

/* Writes what standard output still holds. Returns `code`; if output was lost, EXIT_NO instead of EXIT_DONE, with a
 * message on standard error that begins with `program`. A reader that went away causes no message. */
int kva_streams_close(const char *program, int code);

#endif
