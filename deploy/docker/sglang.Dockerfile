# syntax=docker/dockerfile:1
# SGLang with kvstore's base install (client and adapter: no dependencies, so nothing of the engine's changes):
#   docker build -f deploy/docker/sglang.Dockerfile --build-arg SGLANG_IMAGE=lmsysorg/sglang:v0.5.23 -t sglang-kvstore:v0.5.23 .
# The wheel is built in the same image, so that it fits its Python.

ARG SGLANG_IMAGE=lmsysorg/sglang:v0.5.23
FROM ${SGLANG_IMAGE} AS builder
WORKDIR /src
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY proto proto
COPY native native
COPY client client
COPY hicache_adapter hicache_adapter
COPY kvstore kvstore
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${SGLANG_IMAGE}
RUN --mount=type=bind,from=builder,source=/wheels,target=/wheels \
    python3 -m pip install --no-cache-dir --no-index --no-deps --find-links=/wheels hicache-kvstore
