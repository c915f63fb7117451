# syntax=docker/dockerfile:1
# Builds iof, runs its tests, and makes an image of the command and the C libraries:
#
#   docker buildx build --allow security.insecure .
#
# The tests need io_uring, which Docker's default seccomp profile refuses; --security=insecure lifts it
# for that step. The builder must permit the entitlement: `docker buildx create --use
# --buildkitd-flags '--allow-insecure-entitlement security.insecure'`. The image itself runs under the
# default profile: iof then uses epoll.
FROM rust:1.92-bookworm AS tested
RUN apt-get update \
    && RUNLEVEL=1 apt-get install -y --no-install-recommends rsyslog valgrind libpmix-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /iof
COPY . .
RUN --security=insecure .ci/test

FROM tested AS built
RUN cargo install --locked --no-track --path engine/cli --root /image/usr/local \
    && DESTDIR=/image engine/c/install /usr/local

FROM debian:bookworm-slim
COPY --from=built /image /
RUN ldconfig
ENTRYPOINT ["iof"]
