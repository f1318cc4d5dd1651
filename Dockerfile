# The command in a small image. An NVIDIA GPU needs the container toolkit and `docker run --gpus all`.
#
#     docker build --tag hologram .
#     docker run --rm -it -v hologram-models:/models hologram chat hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF
FROM rust:1-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --bin hologram

FROM debian:bookworm-slim
COPY --from=build /source/target/release/hologram /usr/local/bin/hologram
COPY --from=build /source/LICENSE-MIT /source/LICENSE-APACHE /usr/share/doc/hologram/
# Models and compiled kernels outlive the container if a volume is mounted here.
ENV HF_HOME=/models/huggingface HOLOGRAM_CACHE=/models/kernels \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --create-home hologram && mkdir /models && chown hologram /models
USER hologram
VOLUME /models
ENTRYPOINT ["hologram"]
