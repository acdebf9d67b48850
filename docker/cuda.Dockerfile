# turnwise on an NVIDIA GPU: docker build --file docker/cuda.Dockerfile --tag turnwise-cuda .
# Run it with `docker run --gpus all --volume "$PWD:/home/turnwise/work" turnwise-cuda train ...`.
FROM nvidia/cuda:13.0.1-base-ubuntu24.04

# hadolint ignore=DL3008
RUN apt-get update \
  && apt-get install --yes --no-install-recommends bubblewrap gcc git libc6-dev make python3 python3-dev python3-venv \
  && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 10001 turnwise && python3 -m venv /opt/turnwise
ENV PATH=/opt/turnwise/bin:$PATH
WORKDIR /home/turnwise/source
COPY --chown=10001 . .
# the default index has CUDA builds; they bring their own CUDA libraries, so the base image is enough
RUN pip install --no-cache-dir --constraint constraints.txt '.[train,lora]'

USER 10001
WORKDIR /home/turnwise/work
ENTRYPOINT ["turnwise"]
CMD ["--help"]
