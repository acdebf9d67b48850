# turnwise on a CPU. PIP_EXTRA_INDEX_URL is read by pip: give it the index of PyTorch's CPU builds, which its
# installation page names; without it the default index brings gigabytes of CUDA:
# docker build --file docker/cpu.Dockerfile --build-arg PIP_EXTRA_INDEX_URL=... --tag turnwise .
FROM python:3.11-slim-bookworm

# bubblewrap isolates the repair environment; make and gcc serve packages without a wheel
# hadolint ignore=DL3008
RUN apt-get update \
  && apt-get install --yes --no-install-recommends bubblewrap gcc git libc6-dev make \
  && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 10001 turnwise
WORKDIR /home/turnwise/source
COPY --chown=10001 . .
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir --constraint constraints.txt '.[train]'

USER 10001
WORKDIR /home/turnwise/work
ENTRYPOINT ["turnwise"]
CMD ["--help"]
