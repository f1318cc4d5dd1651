/* Tensors, an operation, a function and a program. Usage: tensors [DEVICE] */
#include <hologram.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(HologramStatus status) {
    if (status != HOLOGRAM_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", hologram_status_name(status), hologram_last_error());
        exit(1);
    }
}

static void show(const char *name, const HologramTensor *tensor) {
    float numbers[4];
    check(hologram_tensor_read(tensor, numbers, sizeof numbers));
    printf("%s = [%g, %g, %g, %g]\n", name, numbers[0], numbers[1], numbers[2], numbers[3]);
}

int main(int argc, char **argv) {
    HologramDevice *device;
    check(hologram_device_open(argc > 1 ? argv[1] : "cpu", 0, &device));

    const float numbers[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    HologramTensor *x, *y;
    check(hologram_tensor_new(device, HOLOGRAM_TYPE_F32, shape, 1, numbers, sizeof numbers, &x));

    /* One operation. */
    const HologramTensor *operands[2] = {x, x};
    check(hologram_operation(device, "mul", operands, 2, NULL, &y));
    show("x * x", y);
    hologram_tensor_release(y);

    /* Several as one function, which is compiled once: softmax(x * x - x). */
    HologramFunction *function;
    size_t square, rest, result;
    check(hologram_function_new(device, 1, &function));
    check(hologram_function_apply(function, "mul", (size_t[]){0, 0}, 2, NULL, &square));
    check(hologram_function_apply(function, "sub", (size_t[]){square, 0}, 2, NULL, &rest));
    HologramOperationOptions options = HOLOGRAM_OPERATION_OPTIONS;
    options.axis = 0;
    check(hologram_function_apply(function, "softmax", &rest, 1, &options, &result));
    check(hologram_function_return(function, &result, 1));
    check(hologram_function_call(function, operands, 1, &y, 1));
    show("softmax(x * x - x)", y);
    hologram_function_release(function);

    /* A program of one's own, which writes into y. */
    const char *text = "kernel scale(x: buffer<f32, read>, y: buffer<f32, write>, by: f32) workgroup(4) {\n"
                       "  %i = global.x\n  %v = load.f32 x[%i]\n  %v = mul.f32 %v, by\n  store.f32 y[%i], %v\n}\n";
    HologramProgram *program;
    const float by = 10;
    const HologramArgument arguments[3] = {{x, NULL}, {y, NULL}, {NULL, &by}};
    check(hologram_program_new(device, text, strlen(text), &program));
    check(hologram_program_run(program, 1, 1, 1, arguments, 3));
    show("scale(x, 10)", y);
    hologram_program_release(program);

    hologram_tensor_release(x);
    hologram_tensor_release(y);
    hologram_device_release(device);
    return 0;
}
