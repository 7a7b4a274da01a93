# SPDX-License-Identifier: MIT
# Wheels of one receipt, built and installed: docker build -t tilekiln . && docker run --rm tilekiln
# docs/how-to/containers.md says more.
FROM debian:12-slim AS build
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates g++ python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
ARG RECEIPT=flash
ARG TARGET=all
WORKDIR /tilekiln
COPY . .
RUN tools/dev --with packaging scons receipt=$RECEIPT target=$TARGET wheel \
 && mkdir /wheels \
 && cp build/*-release*/wheel/*.whl /wheels

FROM debian:12-slim
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends libstdc++6 python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
# Of tilekiln-sources too: `tk.jit` builds with it where a compiler is added.
# hadolint ignore=DL3013
RUN python3 -m venv /opt/tilekiln \
 && /opt/tilekiln/bin/pip install --no-cache-dir "numpy>=2" ml-dtypes \
 && /opt/tilekiln/bin/pip install --no-cache-dir --no-index --no-deps /wheels/tilekiln_*.whl
ENV PATH=/opt/tilekiln/bin:$PATH
USER 65534:65534
CMD ["tilekiln", "info"]
