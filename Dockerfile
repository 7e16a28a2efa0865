# Weft's wheel in an image with torch. The stage `dev` is the dev container (.devcontainer).
#
#     docker build -t weft .                      # --build-arg TORCH=2.15.0 PYTHON=3.12
#     docker run weft                             # python -m weft.doctor
#
# torch's DataLoader workers use /dev/shm, of which Docker gives 64 MiB: --shm-size. Weft does not.
ARG PYTHON=3.11

FROM python:${PYTHON}-bookworm AS dev
ARG TORCH=2.11.0
ENV WEFT_CACHE=/opt/weft-cache
# What the setup reads and nothing else, so that a change of the sources does not repeat it.
COPY dev /tmp/weft/
COPY tools/dev /tmp/weft/tools/dev
RUN WEFT_TORCH=${TORCH} /tmp/weft/dev setup

FROM dev AS build
ARG TORCH=2.11.0
COPY . /weft
RUN WEFT_TORCH=${TORCH} /weft/dev wheel

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /weft/dist/*.whl /tmp/
RUN pip install --no-cache-dir /tmp/*.whl && rm /tmp/*.whl
CMD ["python", "-m", "weft.doctor"]
