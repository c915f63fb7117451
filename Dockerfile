# syntax=docker/dockerfile:1
# Makes an image of the command and the C libraries:
#
#   docker build .
#
# The image runs under Docker's default seccomp profile, which refuses io_uring: iof then uses epoll. The tests need
# io_uring and have a stage of their own, which only this builds:
#
#   docker build --target tests --tag iof-tests . && docker run --rm --security-opt seccomp=unconfined iof-tests
FROM rust:1.92-bookworm AS source
WORKDIR /iof
COPY . .

FROM source AS tests
RUN apt-get update \
    && RUNLEVEL=1 apt-get install -y --no-install-recommends rsyslog valgrind libpmix-dev \
    && rm -rf /var/lib/apt/lists/*
CMD [".ci/test"]

FROM source AS built
RUN cargo build --profile dist --locked -p iof-cli \
    && install -D target/dist/iof /image/usr/local/bin/iof \
    && DESTDIR=/image engine/c/install /usr/local

FROM debian:bookworm-slim
COPY --from=built /image /
RUN ldconfig
ENTRYPOINT ["iof"]
