/* Runs a model of forge-pipeline on a device: no Python, no TVM, no dynamic linker.
 *
 * A forge_model is a library that was opened and checked. It never changes, and threads may share it. A forge_session has
 * the memory that a call needs, and its threads; one call at a time may use it. Stop a model's sessions before you close
 * it. A process that was forked may use models of its parent, and stop its sessions, but starts its own.
 *
 * Functions that return int return FORGE_OK or what went wrong, and leave a sentence in forge_message(). Nothing is
 * printed, nothing throws, nothing exits. */
#ifndef FORGE_H
#define FORGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FORGE_OK,
    FORGE_MEMORY,      /* the system has no memory or no threads to give */
    FORGE_FILE,        /* a file cannot be read */
    FORGE_DAMAGED,     /* no library of format 2 or 3, or one that was altered */
    FORGE_PASSWORD,    /* another password, or no key file or password at all */
    FORGE_MACHINE,     /* built for another CPU, or a system that loads no code */
    FORGE_INPUT,       /* arrays that do not fit the model, or each other */
    FORGE_KERNEL,      /* a kernel refused its arguments */
    FORGE_CANCELLED,   /* by forge_cancel */
    FORGE_UNSUPPORTED, /* a library without a program: for a GPU */
    FORGE_USAGE,       /* a call that this interface does not allow */
    FORGE_UNTRUSTED    /* signed by no trusted key */
};

enum { FORGE_MAX_RANK = 8, FORGE_ALIGNMENT = 64, FORGE_MAX_THREADS = 64 };

typedef struct forge_model forge_model;
typedef struct forge_session forge_session;

/* DLPack's codes: 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool (8 bits). */
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} forge_dtype;

/* An extent below 0 may have any size, the same wherever the number is; forge_extent(model, ~extent) is its name. */
typedef struct {
    const char *name;
    forge_dtype dtype;
    int32_t rank;
    int64_t shape[FORGE_MAX_RANK];
} forge_port;

/* The caller's memory, rows without gaps, size in bytes. Inputs that are aligned to FORGE_ALIGNMENT are read in place.
 * Of an output, size says what room there is, then what was written, and shape is written. data may be NULL: it then
 * points into the session's memory, or into an input's, until the next call. */
typedef struct {
    void *data;
    size_t size;
    int64_t shape[FORGE_MAX_RANK];
} forge_array;

enum { FORGE_SAME = -1 }; /* no failure: what forge_repeat says */

/* For a program that makes the same call many times. */
typedef struct {
    forge_session *session;
    const forge_array *inputs;
    forge_array *outputs;
} forge_call;

/* Since forge_profile: of a place in the program that calls a kernel, its name, how often it did, and how long it took. */
typedef struct {
    const char *name;
    uint64_t calls, nanoseconds;
} forge_kernel;

/* What to open: a path, or a file's contents; for an encrypted model its key file, too, and the password. NULL and 0 for
 * what is not given, and for limits that need not be: bytes that the file, and deriving the key, may take. A plain library
 * in memory that is aligned to FORGE_ALIGNMENT is used where it lies and must stay as it is; anything else is read or
 * copied once. With trusted, public keys as lines "ssh-ed25519 AAAA...", it must be signed by one of them: by the signature
 * that is given, else by that of signature_path, else by the one beside path, whose name has .sig at its end.
 * Of a library with variants for several CPUs, the best that this one runs is opened, or the one that variant names. */
typedef struct {
    const char *path;
    const void *file;
    size_t size;
    const char *key_path;
    const void *key;
    size_t key_size;
    const void *password;
    size_t password_size;
    size_t max_bytes, max_kdf_bytes;
    const void *trusted;
    size_t trusted_size;
    const char *signature_path;
    const void *signature;
    size_t signature_size;
    const char *variant;
} forge_source;

/* key_path and password are NULL for a model that is not encrypted. */
int forge_open(const char *path, const char *key_path, const void *password, size_t password_size, forge_model **model);
int forge_open_from(const forge_source *source, forge_model **model);
void forge_close(forge_model *model);

int32_t forge_inputs(const forge_model *model);
int32_t forge_outputs(const forge_model *model);
const forge_port *forge_input(const forge_model *model, int32_t index);  /* NULL where there is none */
const forge_port *forge_output(const forge_model *model, int32_t index); /* NULL where there is none */
const char *forge_extent(const forge_model *model, int64_t index);       /* NULL where there is none */
const char *forge_target(const forge_model *model);                      /* the triple it was built for */
const char *forge_variant(const forge_model *model);                     /* that was opened; NULL where there are none */
const char *forge_metadata(const forge_model *model, size_t *size);      /* JSON, docs/format.md; no zero at its end */
size_t forge_weights(const forge_model *model);                          /* bytes */
size_t forge_arena(const forge_model *model); /* bytes for values between kernels, in each session; more where sizes are open */

int forge_start(const forge_model *model, int32_t threads, forge_session **session);
void forge_stop(forge_session *session);
int forge_set_threads(forge_session *session, int32_t threads);
/* Keep threads on CPUs, by the system's numbers, taken in turn: cpus[0] is that of the calling thread, which is yours and
 * is left where it is. Count 0: threads run anywhere. */
int forge_pin(forge_session *session, const uint32_t *cpus, int32_t count);
int forge_run(forge_session *session, const forge_array *inputs, forge_array *outputs);
/* As forge_run does, with a session and arrays that are named once; inputs stay where they were said to be. Outputs are left
 * in the session's memory, whatever data says. FORGE_SAME where they lie there as after the call before, in the same shapes. */
int forge_repeat(const forge_call *call);
/* Of a model with states (compile.state): a session keeps what each call gives of them, and the next call reads it. A call
 * that fails changes nothing. forge_length is how far caches have grown; forge_rewind has a session forget all behind its
 * first length entries; 0 is the beginning, and all there is for states that do not grow, which then are zeros. */
int64_t forge_length(const forge_session *session);
int forge_rewind(forge_session *session, int64_t length);
/* From any thread: the call that is under way, or the next one, ends before its next kernel. */
void forge_cancel(forge_session *session);
/* Starts at zero. */
int forge_profile(forge_session *session, int on);
/* The places that call kernels, in the program's order: layers that share a kernel have one each. */
int32_t forge_places(const forge_session *session);
int forge_place_time(const forge_session *session, int32_t index, forge_kernel *kernel);

/* About the last failure of the calling thread: "WHERE: expected ..., found ...", and on a second line "fix: ...". */
const char *forge_message(void);

#ifdef __cplusplus
}
#endif
#endif
