/* Hologram's C interface. docs/c.md explains it.
 *
 * A pointer may be NULL only where that is said; otherwise it must point to as many valid elements as its function
 * needs. Objects are freed by the `_release` function of their kind, which takes NULL too. A failed call leaves the
 * places of its results as they are, and hologram_last_error says why it failed.
 *
 * Made by cbindgen from crates/hologram-c: change it there. */

#ifndef HOLOGRAM_H
#define HOLOGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* From dlpack.h, which is needed only by those who look into it. */
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;


/*
 The version of this interface. It grows with every change; programs for an older version keep working while the
 major version, `HOLOGRAM_ABI_VERSION / 1000`, is the same.
 */
#define HOLOGRAM_ABI_VERSION 1000

/*
 The result of a call. `hologram_last_error` has the reason in words.
 */
enum HologramStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Done.
   */
  HOLOGRAM_STATUS_OK = 0,
  /*
   An argument is NULL, out of range or does not fit the others.
   */
  HOLOGRAM_STATUS_INVALID_ARGUMENT = 1,
  /*
   A device, a tensor operation or a program failed.
   */
  HOLOGRAM_STATUS_COMPUTE = 2,
  /*
   A model's files, tokens, template or generation failed.
   */
  HOLOGRAM_STATUS_MODEL = 3,
  /*
   The caller's callback ended the work.
   */
  HOLOGRAM_STATUS_STOPPED = 4,
  /*
   A defect of the library. Objects of the call may be in any state; others are not affected.
   */
  HOLOGRAM_STATUS_INTERNAL = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum HologramStatus HologramStatus;
#else
typedef int32_t HologramStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Element types.
 */
enum HologramType
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   A byte, 0 or 1.
   */
  HOLOGRAM_TYPE_BOOL = 0,
  /*
   Signed, 8 bits.
   */
  HOLOGRAM_TYPE_I8 = 1,
  /*
   Unsigned, 8 bits.
   */
  HOLOGRAM_TYPE_U8 = 2,
  /*
   Signed, 16 bits.
   */
  HOLOGRAM_TYPE_I16 = 3,
  /*
   Unsigned, 16 bits.
   */
  HOLOGRAM_TYPE_U16 = 4,
  /*
   Signed, 32 bits.
   */
  HOLOGRAM_TYPE_I32 = 5,
  /*
   Unsigned, 32 bits.
   */
  HOLOGRAM_TYPE_U32 = 6,
  /*
   Signed, 64 bits.
   */
  HOLOGRAM_TYPE_I64 = 7,
  /*
   Unsigned, 64 bits.
   */
  HOLOGRAM_TYPE_U64 = 8,
  /*
   IEEE 754 binary16.
   */
  HOLOGRAM_TYPE_F16 = 9,
  /*
   The upper half of a binary32.
   */
  HOLOGRAM_TYPE_BF16 = 10,
  /*
   IEEE 754 binary32.
   */
  HOLOGRAM_TYPE_F32 = 11,
  /*
   IEEE 754 binary64, which not every device has.
   */
  HOLOGRAM_TYPE_F64 = 12,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum HologramType HologramType;
#else
typedef int32_t HologramType;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Why a generation ended.
 */
enum HologramFinish
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   The model ended the text.
   */
  HOLOGRAM_FINISH_END_OF_TEXT = 0,
  /*
   The most tokens were generated.
   */
  HOLOGRAM_FINISH_MAX_TOKENS = 1,
  /*
   The context is full.
   */
  HOLOGRAM_FINISH_CONTEXT_FULL = 2,
  /*
   A stop text came.
   */
  HOLOGRAM_FINISH_STOP_TEXT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum HologramFinish HologramFinish;
#else
typedef int32_t HologramFinish;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 A device: a CPU or a GPU with its memory and queue.
 */
typedef struct HologramDevice HologramDevice;

/*
 A function of tensors: operations on its arguments and on each other's results, compiled at the first call with
 arguments of some types and shapes, so that a chain of elementwise operations is one launch.
 */
typedef struct HologramFunction HologramFunction;

/*
 A language model on a device.
 */
typedef struct HologramModel HologramModel;

/*
 A program, compiled for a device.
 */
typedef struct HologramProgram HologramProgram;

/*
 A context of one text: what its next prompt has in common with the tokens before is not computed again.
 */
typedef struct HologramSession HologramSession;

/*
 An array of numbers on a device. It does not change, except where a program writes to it.
 */
typedef struct HologramTensor HologramTensor;

/*
 What a device has.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   Bytes of memory.
   */
  uint64_t memory_bytes;
  /*
   Cores of a CPU, multiprocessors of a GPU.
   */
  uint64_t parallelism;
  /*
   The most threads of a workgroup.
   */
  uint32_t workgroup_threads;
  /*
   Threads of a subgroup.
   */
  uint32_t subgroup_threads;
} HologramDeviceInfo;

/*
 What operations take beside tensors. `HOLOGRAM_OPERATION_OPTIONS` is its initial value.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   The dimension of reductions, `softmax`, `log_softmax`, `arg_max`, `arg_min`, `cumsum`, `sort`, `arg_sort` and
   `cat`; negative ones count from the last.
   */
  int64_t axis;
  /*
   The shape of `reshape` and `broadcast_to`, the order of `permute`.
   */
  const int64_t *dims;
  /*
   Their number.
   */
  size_t dim_count;
  /*
   The type of `cast`, a `HologramType`.
   */
  int32_t type;
  /*
   Whether `sort` and `arg_sort` begin with the greatest: 0 or 1.
   */
  int32_t descending;
  /*
   What `rms_norm` and `layer_norm` add to the variance.
   */
  double epsilon;
} HologramOperationOptions;

/*
 How a text is generated. `HOLOGRAM_GENERATE_OPTIONS` is its initial value.
 */
typedef struct {
  /*
   Bytes of this structure.
   */
  size_t struct_size;
  /*
   The most tokens to generate.
   */
  size_t max_tokens;
  /*
   0 always takes the most probable token.
   */
  float temperature;
  /*
   Sample from so many most probable tokens; 0 turns it off.
   */
  uint32_t top_k;
  /*
   Sample from the most probable tokens whose probabilities add up to this; 1 turns it off.
   */
  float top_p;
  /*
   Drop tokens less probable than this share of the most probable one; 0 turns it off.
   */
  float min_p;
  /*
   Divides the logits of recent tokens; 1 turns it off.
   */
  float repeat_penalty;
  /*
   Random numbers follow from it.
   */
  uint64_t seed;
  /*
   Texts before which the generation ends.
   */
  const char *const *stop;
  /*
   Their number.
   */
  size_t stop_count;
} HologramGenerateOptions;

/*
 Gets each token and the text that it completes, which may be empty and is valid during the call. Returns whether to
 go on. It may be called on any thread, and must not use the session.
 */
typedef bool (*HologramTokenCallback)(uint32_t token, const char *text, size_t bytes, void *context);

/*
 What a generation did.
 */
typedef struct {
  /*
   Bytes of this structure; the caller sets it.
   */
  size_t struct_size;
  /*
   Why it ended.
   */
  int32_t finish;
  /*
   Tokens of the prompt.
   */
  size_t prompt_tokens;
  /*
   Those of them that the session had already.
   */
  size_t cached_tokens;
  /*
   Tokens generated.
   */
  size_t generated_tokens;
  /*
   Seconds until the first token.
   */
  double prompt_seconds;
  /*
   Seconds after it.
   */
  double decode_seconds;
} HologramGenerated;

/*
 An argument of a program: a tensor for a buffer; for a number its bytes, in the type of the parameter.
 */
typedef struct {
  /*
   The tensor, or NULL for a number.
   */
  const HologramTensor *tensor;
  /*
   The number, or NULL for a tensor.
   */
  const void *number;
} HologramArgument;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The library's `HOLOGRAM_ABI_VERSION`, for comparison with the header's.
 */
uint32_t hologram_abi_version(void);

/*
 The library's version, such as "0.1.0".
 */
const char *hologram_version(void);

/*
 Opens a device by name: "auto", "cpu", "cuda", "cuda:1", "metal" or "reference". `threads` are worker threads of the
 CPU; 0 is one per physical core.
 */
HologramStatus hologram_device_open(const char *name,
                                    size_t threads,
                                    HologramDevice **device);

/*
 The names of this machine's devices, the fastest first, one per line. Free them by `hologram_string_release`.
 */
HologramStatus hologram_device_names(char **names);

/*
 The device's own name, such as that of the GPU. Free it by `hologram_string_release`.
 */
HologramStatus hologram_device_name(const HologramDevice *device, char **name);

/*
 Fills in what the device has, as far as `struct_size`, which the caller sets, reaches.
 */
HologramStatus hologram_device_info(const HologramDevice *device, HologramDeviceInfo *info);

/*
 Waits until the device has done all its work.
 */
HologramStatus hologram_device_synchronize(const HologramDevice *device);

/*
 Frees a device's handle. Its tensors, functions and models keep the device itself alive.
 */
void hologram_device_release(HologramDevice *device);

/*
 The tensor's memory as a `DLManagedTensorVersioned`, whose deleter the consumer calls. The call waits for the
 elements, which must not be changed while the tensor is in use here. The structure is flagged as read-only if
 several indices have one element, or the tensor's own memory is read-only.
 */
HologramStatus hologram_tensor_to_dlpack(const HologramTensor *tensor,
                                         DLManagedTensorVersioned **managed);

/*
 A tensor over the memory of a `DLManagedTensorVersioned`, without a copy, on a device that has the memory. Takes the
 structure: its deleter is called when the memory is no longer used. After a failure the structure is still the
 caller's. The elements must not change while the tensor is in use.
 */
HologramStatus hologram_tensor_from_dlpack(const HologramDevice *device,
                                           DLManagedTensorVersioned *managed,
                                           HologramTensor **tensor);

/*
 One sentence about the calling thread's last failure; empty if nothing failed. Valid until the thread's next call
 that fails.
 */
const char *hologram_last_error(void);

/*
 The name of a status, such as "invalid argument".
 */
const char *hologram_status_name(int32_t status);

/*
 The names of the operations, one per line. Free them by `hologram_string_release`.
 */
HologramStatus hologram_operation_names(char **names);

/*
 The result of an operation on `count` tensors of one device. `options` may be NULL. On a GPU the call returns when
 the device has accepted the work.
 */
HologramStatus hologram_operation(const HologramDevice *device,
                                  const char *name,
                                  const HologramTensor *const *operands,
                                  size_t count,
                                  const HologramOperationOptions *options,
                                  HologramTensor **result);

/*
 A function of `arguments` tensors, which are its values 0, 1, and so on.
 */
HologramStatus hologram_function_new(const HologramDevice *device,
                                     size_t arguments,
                                     HologramFunction **function);

/*
 Adds an operation on values of the function. `value` is the number of its result.
 */
HologramStatus hologram_function_apply(HologramFunction *function,
                                       const char *name,
                                       const size_t *operands,
                                       size_t count,
                                       const HologramOperationOptions *options,
                                       size_t *value);

/*
 Says which values the function returns; it may be called then.
 */
HologramStatus hologram_function_return(HologramFunction *function,
                                        const size_t *values,
                                        size_t count);

/*
 Calls a function. `results` gets as many tensors as it returns, which must be `result_count`.
 */
HologramStatus hologram_function_call(const HologramFunction *function,
                                      const HologramTensor *const *arguments,
                                      size_t count,
                                      HologramTensor **results,
                                      size_t result_count);

/*
 Frees a function.
 */
void hologram_function_release(HologramFunction *function);

/*
 A session of a model for `context` tokens; 0 is the model's context, at most 4096. The model must outlive it.
 */
HologramStatus hologram_session_new(const HologramModel *model,
                                    size_t context,
                                    HologramSession **session);

/*
 Frees a session.
 */
void hologram_session_release(HologramSession *session);

/*
 Continues a prompt in a session, whose tokens before it replaces, and calls `callback` with each token. `options`,
 `callback` and `generated` may be NULL. Returns `HOLOGRAM_STATUS_STOPPED` if the callback ends it.
 */
HologramStatus hologram_generate(const HologramModel *model,
                                 HologramSession *session,
                                 const uint32_t *tokens,
                                 size_t count,
                                 const HologramGenerateOptions *options,
                                 HologramTokenCallback callback,
                                 void *context,
                                 HologramGenerated *generated);

/*
 Loads a model: a .gguf file or a folder of safetensors.
 */
HologramStatus hologram_model_load(const HologramDevice *device,
                                   const char *path,
                                   HologramModel **model);

/*
 The model's vocabulary, width and longest context in tokens. Each place may be NULL.
 */
HologramStatus hologram_model_sizes(const HologramModel *model,
                                    size_t *vocabulary,
                                    size_t *width,
                                    size_t *context);

/*
 The model's name. Free it by `hologram_string_release`.
 */
HologramStatus hologram_model_name(const HologramModel *model, char **name);

/*
 Frees a model. No generation may run.
 */
void hologram_model_release(HologramModel *model);

/*
 Writes the tokens of a text of `len` bytes to `tokens`, which has room for `capacity`, and their number to `count`,
 also where that is more: then nothing is written. `add_special` adds what the model expects around a text, such as
 BOS; `parse_special` reads control tokens that the text spells out.
 */
HologramStatus hologram_tokenize(const HologramModel *model,
                                 const char *text,
                                 size_t len,
                                 bool add_special,
                                 bool parse_special,
                                 uint32_t *tokens,
                                 size_t capacity,
                                 size_t *count);

/*
 The text of tokens. Free it by `hologram_string_release`.
 */
HologramStatus hologram_detokenize(const HologramModel *model,
                                   const uint32_t *tokens,
                                   size_t count,
                                   bool show_control,
                                   char **text);

/*
 Writes the tokens of a conversation, as `hologram_tokenize` does, up to where the model's reply begins. `messages`
 is a JSON list of objects with `role` and `content`, `tools` one of tools in OpenAI's form or NULL. Control tokens
 come from the model's chat template; those that a message spells out are text.
 */
HologramStatus hologram_chat_tokens(const HologramModel *model,
                                    const char *messages,
                                    const char *tools,
                                    uint32_t *tokens,
                                    size_t capacity,
                                    size_t *count);

/*
 The vector of a text that is given as tokens, pooled and normalised as the model's files say: f32 [width], on the
 model's device.
 */
HologramStatus hologram_embed(const HologramModel *model,
                              const uint32_t *tokens,
                              size_t count,
                              HologramTensor **vector);

/*
 Frees a text that the library gave. NULL is allowed.
 */
void hologram_string_release(char *text);

/*
 Compiles the text of a program.
 */
HologramStatus hologram_program_new(const HologramDevice *device,
                                    const char *text,
                                    size_t len,
                                    HologramProgram **program);

/*
 The number of the program's parameters.
 */
HologramStatus hologram_program_parameters(const HologramProgram *program, size_t *count);

/*
 Runs `x` · `y` · `z` workgroups of a program with an argument per parameter, and waits. The program changes the
 tensors of buffers that it writes.
 */
HologramStatus hologram_program_run(const HologramProgram *program,
                                    uint32_t x,
                                    uint32_t y,
                                    uint32_t z,
                                    const HologramArgument *arguments,
                                    size_t count);

/*
 Frees a program.
 */
void hologram_program_release(HologramProgram *program);

/*
 A tensor on a device with a copy of `bytes` bytes at `data`, in row-major order. `type` is a `HologramType`; a rank
 of 0 is one number.
 */
HologramStatus hologram_tensor_new(const HologramDevice *device,
                                   int32_t type,
                                   const int64_t *shape,
                                   size_t rank,
                                   const void *data,
                                   size_t bytes,
                                   HologramTensor **tensor);

/*
 Another handle of the same tensor.
 */
HologramStatus hologram_tensor_retain(const HologramTensor *tensor, HologramTensor **same);

/*
 The tensor's element type, a `HologramType`.
 */
HologramStatus hologram_tensor_type(const HologramTensor *tensor, int32_t *type);

/*
 The tensor's number of dimensions, and the sizes of the first `room` of them.
 */
HologramStatus hologram_tensor_shape(const HologramTensor *tensor,
                                     int64_t *shape,
                                     size_t room,
                                     size_t *rank);

/*
 Waits for the tensor's elements and copies them, in row-major order, to `bytes` bytes at `data`: the product of its
 sizes and of an element's.
 */
HologramStatus hologram_tensor_read(const HologramTensor *tensor,
                                    void *data,
                                    size_t bytes);

/*
 The tensor on another device, copied through the host unless it is there already.
 */
HologramStatus hologram_tensor_to_device(const HologramTensor *tensor,
                                         const HologramDevice *device,
                                         HologramTensor **moved);

/*
 Frees a tensor's handle.
 */
void hologram_tensor_release(HologramTensor *tensor);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HOLOGRAM_H */

/* Initial values of options: struct_size, then the defaults. */
#define HOLOGRAM_OPERATION_OPTIONS { sizeof(HologramOperationOptions), -1, NULL, 0, HOLOGRAM_TYPE_F32, 0, 1e-5 }
#define HOLOGRAM_GENERATE_OPTIONS { sizeof(HologramGenerateOptions), 256, 0.8f, 40, 0.95f, 0, 1, 0, NULL, 0 }
