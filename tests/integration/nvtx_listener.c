/* A stand-in for a profiler: NVTX loads it through NVTX_INJECTION64_PATH, and it writes every domain range to the file
   that NVTX_LISTENER_FILE names. Written from NVTX's public tool interface: an export table by id, a function table by
   module, a slot a function. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef const void *(*GetExportTable)(uint32_t id);
typedef struct {
    size_t struct_size;
    int (*get_module_function_table)(uint32_t module, Function ***table, unsigned int *size);
} Callbacks;
typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
} Attributes;
typedef struct { char domain[64]; } Domain;
typedef struct { char text[256]; } String;

enum { EXPORT_CALLBACKS = 1, MODULE_CORE2 = 5 };
enum { PUSH = 4, POP = 5, REGISTER_STRING = 10, DOMAIN_CREATE = 12 };  /* slots of the core2 module, from 1 */
static FILE *out;

static void *domain_create(const char *name) {
    Domain *domain = calloc(1, sizeof *domain);
    strncpy(domain->domain, name, sizeof domain->domain - 1);
    return domain;
}
static void *register_string(void *domain, const char *text) {
    String *string = calloc(1, sizeof *string);
    (void)domain;
    strncpy(string->text, text, sizeof string->text - 1);
    return string;
}
static int push(void *domain, const Attributes *attributes) {
    const char *text = attributes->message_type == 3 ? ((String *)attributes->message)->text
                     : attributes->message_type == 1 ? (const char *)attributes->message : "?";
    fprintf(out, "push\t%s\t%s\t%d\n", domain ? ((Domain *)domain)->domain : "", text, attributes->message_type);
    fflush(out);
    return 0;
}
static int pop(void *domain) {
    fprintf(out, "pop\t%s\n", domain ? ((Domain *)domain)->domain : "");
    fflush(out);
    return 0;
}

int InitializeInjectionNvtx2(GetExportTable get_export_table) {
    const Callbacks *callbacks = get_export_table(EXPORT_CALLBACKS);
    Function **table = NULL;
    unsigned int size = 0;
    const char *path = getenv("NVTX_LISTENER_FILE");
    out = path ? fopen(path, "a") : NULL;
    if (!out || !callbacks || !callbacks->get_module_function_table(MODULE_CORE2, &table, &size)) return 0;
    if (table[DOMAIN_CREATE]) *table[DOMAIN_CREATE] = (Function)domain_create;
    if (table[REGISTER_STRING]) *table[REGISTER_STRING] = (Function)register_string;
    if (table[PUSH]) *table[PUSH] = (Function)push;
    if (table[POP]) *table[POP] = (Function)pop;
    return 1;
}
