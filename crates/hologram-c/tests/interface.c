/* What the interface promises: results, errors in words, sizes of structures, DLPack. Usage: interface CHAT_MODEL */
#include <hologram.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* DLPack 1.1's structure, as in dlpack.h. */
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Raw;
struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(DLManagedTensorVersioned *);
    uint64_t flags;
    Raw tensor;
};

#define TRUE(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s does not hold (%s)\n", __FILE__, __LINE__, #what, hologram_last_error());         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define OK(call) TRUE((call) == HOLOGRAM_STATUS_OK)
#define FAILS(call, status, words)                                                                                     \
    do {                                                                                                               \
        TRUE((call) == HOLOGRAM_STATUS_##status);                                                                      \
        TRUE(strstr(hologram_last_error(), words) != NULL);                                                            \
    } while (0)

static HologramDevice *device;

static HologramTensor *tensor(const float *numbers, int64_t rows, int64_t columns) {
    HologramTensor *made;
    const int64_t shape[2] = {rows, columns};
    OK(hologram_tensor_new(device, HOLOGRAM_TYPE_F32, shape, 2, numbers, (size_t)(rows * columns) * 4, &made));
    return made;
}

static void tensors(void) {
    const float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 0, 1, 1, 1};
    HologramTensor *x = tensor(a, 2, 3), *w = tensor(b, 3, 2), *y = NULL, *same;
    const HologramTensor *both[2] = {x, w};
    float got[6];
    OK(hologram_operation(device, "matmul", both, 2, NULL, &y));
    OK(hologram_tensor_read(y, got, 16));
    TRUE(got[0] == 4 && got[1] == 5 && got[2] == 10 && got[3] == 11);
    hologram_tensor_release(y);
    /* A reduction over the first dimension, and a shorter structure of an older program. */
    HologramOperationOptions options = HOLOGRAM_OPERATION_OPTIONS;
    options.axis = 0;
    options.struct_size = offsetof(HologramOperationOptions, dims);
    OK(hologram_operation(device, "sum", both, 1, &options, &y));
    int64_t shape[4] = {0};
    size_t rank;
    int32_t type;
    OK(hologram_tensor_shape(y, shape, 4, &rank));
    OK(hologram_tensor_type(y, &type));
    OK(hologram_tensor_read(y, got, 12));
    TRUE(rank == 1 && shape[0] == 3 && type == HOLOGRAM_TYPE_F32 && got[0] == 5 && got[2] == 9);
    /* A handle more; one less does not free the tensor. */
    OK(hologram_tensor_retain(y, &same));
    hologram_tensor_release(y);
    OK(hologram_tensor_read(same, got, 12));
    hologram_tensor_release(same);
    /* Mistakes are answered in words, and leave the result's place alone. */
    y = NULL;
    FAILS(hologram_operation(device, "matmull", both, 2, NULL, &y), INVALID_ARGUMENT, "there is no operation");
    FAILS(hologram_operation(device, "matmul", both, 1, NULL, &y), INVALID_ARGUMENT, "takes 2 tensors, not 1");
    FAILS(hologram_operation(device, "add", both, 2, NULL, &y), COMPUTE, "[2, 3]");
    FAILS(hologram_operation(device, "add", NULL, 2, NULL, &y), INVALID_ARGUMENT, "operands is NULL");
    FAILS(hologram_operation(NULL, "add", both, 2, NULL, &y), INVALID_ARGUMENT, "device is NULL");
    FAILS(hologram_operation(device, "add", both, 2, NULL, NULL), INVALID_ARGUMENT, "result is NULL");
    options.axis = 7;
    FAILS(hologram_operation(device, "sum", both, 1, &options, &y), COMPUTE, "no dimension 7");
    options.struct_size = 0;
    FAILS(hologram_operation(device, "sum", both, 1, &options, &y), INVALID_ARGUMENT, "struct_size is 0");
    FAILS(hologram_tensor_read(x, got, 4), INVALID_ARGUMENT, "24 bytes");
    FAILS(hologram_tensor_new(device, 99, shape, 1, a, 4, &y), INVALID_ARGUMENT, "no element type 99");
    shape[0] = -1;
    FAILS(hologram_tensor_new(device, HOLOGRAM_TYPE_F32, shape, 1, a, 4, &y), INVALID_ARGUMENT, "size -1");
    HologramDevice *none = NULL;
    FAILS(hologram_device_open("gpu", 0, &none), COMPUTE, "gpu");
    TRUE(y == NULL && none == NULL);
    hologram_tensor_release(NULL);
    hologram_tensor_release(x);
    hologram_tensor_release(w);
}

static int freed;
static void count_free(DLManagedTensorVersioned *managed) {
    freed += 1;
    free(managed);
}

static void dlpack(void) {
    float numbers[6] = {1, 2, 3, 4, 5, 6};
    /* The transposed array, by its strides. */
    static int64_t shape[2] = {3, 2}, strides[2] = {1, 3};
    DLManagedTensorVersioned *theirs = calloc(1, sizeof *theirs);
    theirs->major = 1;
    theirs->deleter = count_free;
    theirs->tensor = (Raw){numbers, 1, 0, 2, 2, 32, 1, shape, strides, 0};
    HologramTensor *x, *y;
    theirs->tensor.bits = 7;
    FAILS(hologram_tensor_from_dlpack(device, theirs, &x), INVALID_ARGUMENT, "7 bits");
    theirs->tensor.bits = 32;
    strides[0] = -1;
    FAILS(hologram_tensor_from_dlpack(device, theirs, &x), INVALID_ARGUMENT, "stride of -1");
    strides[0] = 1;
    TRUE(freed == 0);
    OK(hologram_tensor_from_dlpack(device, theirs, &x));
    float got[6];
    OK(hologram_tensor_read(x, got, sizeof got));
    TRUE(got[0] == 1 && got[1] == 4 && got[2] == 2 && got[5] == 6);
    hologram_tensor_release(x);
    TRUE(freed == 1);
    /* The other way round: the memory outlives the handle. */
    y = tensor(numbers, 2, 3);
    DLManagedTensorVersioned *ours;
    OK(hologram_tensor_to_dlpack(y, &ours));
    hologram_tensor_release(y);
    TRUE(ours->major == 1 && ours->tensor.ndim == 2 && ours->tensor.shape[1] == 3 && ours->tensor.code == 2);
    TRUE(((float *)ours->tensor.data)[5] == 6);
    ours->deleter(ours);
}

static void functions_and_programs(void) {
    const float numbers[4] = {1, 4, 9, 16};
    HologramTensor *x = tensor(numbers, 1, 4), *results[2];
    const HologramTensor *arguments[1] = {x};
    HologramFunction *function;
    size_t root, shifted;
    OK(hologram_function_new(device, 1, &function));
    OK(hologram_function_apply(function, "sqrt", (size_t[]){0}, 1, NULL, &root));
    OK(hologram_function_apply(function, "add", (size_t[]){root, 0}, 2, NULL, &shifted));
    FAILS(hologram_function_apply(function, "add", (size_t[]){root, 9}, 2, NULL, &shifted), INVALID_ARGUMENT, "no value 9");
    FAILS(hologram_function_call(function, arguments, 1, results, 2), INVALID_ARGUMENT, "returns 0 values");
    OK(hologram_function_return(function, (size_t[]){root, 2}, 2));
    OK(hologram_function_call(function, arguments, 1, results, 2));
    float got[4];
    OK(hologram_tensor_read(results[0], got, 16));
    TRUE(got[3] == 4);
    OK(hologram_tensor_read(results[1], got, 16));
    TRUE(got[3] == 20);
    FAILS(hologram_function_call(function, arguments, 0, results, 2), INVALID_ARGUMENT, "takes 1 arguments, not 0");
    FAILS(hologram_function_apply(function, "exp", (size_t[]){0}, 1, NULL, &root), INVALID_ARGUMENT, "cannot be changed");
    hologram_tensor_release(results[0]);
    hologram_tensor_release(results[1]);
    hologram_function_release(function);
    HologramProgram *program;
    const char *faulty = "kernel f(x: buffer<f32, read>) workgroup(1) {\n  nonsense\n}\n";
    FAILS(hologram_program_new(device, faulty, strlen(faulty), &program), COMPUTE, "line 2");
    const char *text = "kernel f(x: buffer<f32, readwrite>, by: u8) workgroup(1) {\n  %v = load.f32 x[0]\n"
                       "  %b = cvt.f32 by\n  %v = add.f32 %v, %b\n  store.f32 x[0], %v\n}\n";
    size_t count;
    const uint8_t by = 200;
    OK(hologram_program_new(device, text, strlen(text), &program));
    OK(hologram_program_parameters(program, &count));
    TRUE(count == 2);
    OK(hologram_program_run(program, 1, 1, 1, (HologramArgument[]){{x, NULL}, {NULL, &by}}, 2));
    OK(hologram_tensor_read(x, got, 16));
    TRUE(got[0] == 201);
    FAILS(hologram_program_run(program, 1, 1, 1, (HologramArgument[]){{x, NULL}, {x, NULL}}, 2), INVALID_ARGUMENT, "by is NULL");
    FAILS(hologram_program_run(program, 1, 1, 1, NULL, 0), INVALID_ARGUMENT, "takes 2 arguments, not 0");
    hologram_program_release(program);
    hologram_tensor_release(x);
}

static size_t called, stop_after;
static uint32_t first_tokens[4];
static bool collect(uint32_t token, const char *text, size_t bytes, void *context) {
    TRUE(text[bytes] == 0 && context == &called);
    if (called < 4) first_tokens[called] = token;
    called += 1;
    return called != stop_after;
}

static void models(const char *path) {
    HologramModel *model = NULL;
    FAILS(hologram_model_load(device, "none.gguf", &model), MODEL, "cannot open none.gguf");
    OK(hologram_model_load(device, path, &model));
    size_t vocabulary, width, count, again;
    OK(hologram_model_sizes(model, &vocabulary, &width, NULL));
    TRUE(vocabulary > 100 && width > 0);
    /* The number of tokens is told also where there is no room. */
    uint32_t tokens[256];
    OK(hologram_tokenize(model, "Hello", 5, false, false, NULL, 0, &count));
    OK(hologram_tokenize(model, "Hello", 5, false, false, tokens, 256, &again));
    TRUE(count > 0 && count == again);
    char *text;
    OK(hologram_detokenize(model, tokens, count, false, &text));
    TRUE(strcmp(text, "Hello") == 0);
    hologram_string_release(text);
    const uint32_t unknown = (uint32_t)vocabulary;
    FAILS(hologram_detokenize(model, &unknown, 1, false, &text), INVALID_ARGUMENT, "there is no token");
    FAILS(hologram_tokenize(model, "\xff", 1, false, false, tokens, 256, &count), INVALID_ARGUMENT, "UTF-8");
    FAILS(hologram_chat_tokens(model, "{}", NULL, tokens, 256, &count), INVALID_ARGUMENT, "list of objects");
    OK(hologram_chat_tokens(model, "[{\"role\": \"user\", \"content\": \"Hello\"}]", NULL, tokens, 256, &count));
    TRUE(count > again && count <= 256);
    HologramSession *session;
    OK(hologram_session_new(model, 512, &session));
    HologramGenerateOptions options = HOLOGRAM_GENERATE_OPTIONS;
    options.temperature = 0;
    options.max_tokens = 6;
    HologramGenerated generated = {.struct_size = sizeof generated};
    OK(hologram_generate(model, session, tokens, count, &options, collect, &called, &generated));
    TRUE(generated.prompt_tokens == count && called <= generated.generated_tokens && called > 0);
    TRUE(generated.finish == HOLOGRAM_FINISH_MAX_TOKENS || generated.finish == HOLOGRAM_FINISH_END_OF_TEXT);
    /* The same again, most of it from the session; the callback ends it. */
    const size_t whole = called;
    const uint32_t first = first_tokens[0];
    called = 0, stop_after = 1;
    FAILS(hologram_generate(model, session, tokens, count, &options, collect, &called, &generated), STOPPED, "callback");
    TRUE(called == 1 && whole > 0 && first_tokens[0] == first && generated.cached_tokens > 0);
    options.temperature = NAN;
    FAILS(hologram_generate(model, session, tokens, count, &options, NULL, NULL, NULL), INVALID_ARGUMENT, "temperature");
    HologramTensor *vector;
    int64_t shape[1];
    OK(hologram_embed(model, tokens, count, &vector));
    OK(hologram_tensor_shape(vector, shape, 1, &again));
    TRUE(again == 1 && shape[0] == (int64_t)width);
    hologram_tensor_release(vector);
    /* A session serves its own model. */
    HologramModel *other;
    OK(hologram_model_load(device, path, &other));
    FAILS(hologram_generate(other, session, tokens, count, NULL, NULL, NULL, NULL), INVALID_ARGUMENT, "another model");
    hologram_model_release(other);
    hologram_session_release(session);
    hologram_model_release(model);
}

int main(int argc, char **argv) {
    TRUE(argc == 2);
    TRUE(hologram_abi_version() == HOLOGRAM_ABI_VERSION && strchr(hologram_version(), '.') != NULL);
    TRUE(hologram_last_error()[0] == 0 && strcmp(hologram_status_name(1), "invalid argument") == 0);
    OK(hologram_device_open("cpu", 1, &device));
    char *names;
    OK(hologram_device_names(&names));
    TRUE(strstr(names, "cpu") != NULL);
    hologram_string_release(names);
    HologramDeviceInfo info = {.struct_size = sizeof info};
    OK(hologram_device_info(device, &info));
    TRUE(info.memory_bytes > 0 && info.parallelism > 0 && info.struct_size == sizeof info);
    tensors();
    dlpack();
    functions_and_programs();
    models(argv[1]);
    OK(hologram_device_synchronize(device));
    hologram_device_release(device);
    printf("ok\n");
    return 0;
}
