/* A model's answer, token by token. Usage: generate MODEL.gguf QUESTION [DEVICE] */
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

static bool print(uint32_t token, const char *text, size_t bytes, void *context) {
    (void)token, (void)context;
    fwrite(text, 1, bytes, stdout);
    return fflush(stdout) == 0;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: generate MODEL.gguf QUESTION [DEVICE]\n");
        return 2;
    }
    HologramDevice *device;
    HologramModel *model;
    HologramSession *session;
    check(hologram_device_open(argc > 3 ? argv[3] : "auto", 0, &device));
    check(hologram_model_load(device, argv[1], &model));
    check(hologram_session_new(model, 0, &session));

    /* The question as JSON; quotes and backslashes would have to be escaped. */
    char messages[4096];
    if (snprintf(messages, sizeof messages, "[{\"role\": \"user\", \"content\": \"%s\"}]", argv[2]) >= 4096) return 2;
    uint32_t tokens[4096];
    size_t count;
    check(hologram_chat_tokens(model, messages, NULL, tokens, 4096, &count));
    if (count > 4096) return 2;

    HologramGenerateOptions options = HOLOGRAM_GENERATE_OPTIONS;
    options.temperature = 0;
    options.max_tokens = 24;
    HologramGenerated generated = {.struct_size = sizeof generated};
    check(hologram_generate(model, session, tokens, count, &options, print, NULL, &generated));
    printf("\n");
    fprintf(stderr, "%zu tokens of prompt, %zu generated\n", generated.prompt_tokens, generated.generated_tokens);

    hologram_session_release(session);
    hologram_model_release(model);
    hologram_device_release(device);
    return 0;
}
