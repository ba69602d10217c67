# What people type. Everything behind it is in scripts/ and cmake/.
BUILD ?= build
JOBS ?= $(shell nproc)
# Paths relative to the tree, so that build/ and build-cuda/ share their cached objects.
export CCACHE_SLOPPINESS := pch_defines,time_macros
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_PCH_EXTSUM := 1

.PHONY: help deps build run pretrain test lint format soak soak-faults bench cuda install clean

help:
	@echo "make run      install, build and train SmolLM2-135M on additions with reinforcement learning (10 minutes)"
	@echo "make test     install, build and run the tests"
	@echo "make build    $(BUILD)/bin/troupe and $(BUILD)/bin/troupe-tests"
	@echo "make pretrain train a small model on Shakespeare from scratch"
	@echo "make bench    speed of decoding, a training step and a GRPO step; bench/run --peers: beside transformers, TRL, llama.cpp"
	@echo "make soak     what is too long for CI                          make soak-faults   200 random kills"
	@echo "make lint     format, rooms, clang-tidy                        make cuda   build with CUDA kernels and NCCL"

deps:
	@scripts/install-deps

build: deps
	@cmake --preset release $(CMAKE_ARGUMENTS) >$(BUILD).configure.log 2>&1 || { cat $(BUILD).configure.log; exit 1; }
	@rm -f $(BUILD).configure.log
	@cmake --build $(BUILD) -j $(JOBS)

run: build
	$(BUILD)/bin/troupe rl configs/quickstart.toml

pretrain: build
	$(BUILD)/bin/troupe pretrain configs/pretrain-shakespeare.toml

test: build
	@scripts/run-tests $(BUILD)

lint:
	@scripts/lint

format:
	@scripts/format-check --fix

# FAULTS kills of workers, of graders, of the run and of all of them, over a run with two worker processes that generate and two that grade.
soak-faults: build
	@python3 tests/soak/faults.py $(BUILD)/bin/troupe --kills $(or $(FAULTS),200)

soak: build
	@scripts/soak $(BUILD)

bench: build
	@bench/run $(BUILD)

cuda: deps
	@cmake --preset cuda
	@cmake --build build-cuda -j $(JOBS)

install: build
	@cmake --install $(BUILD)

clean:
	rm -rf build build-debug build-asan build-cuda
