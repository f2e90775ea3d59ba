# cord: fibers and net.box for LuaJIT. `make help` lists what can be made; variables and their defaults:
PROFILE ?= release#             cargo profile of the rock: release, or quick while developing
ROCKS ?= $(CURDIR)/.rocks#      the project-local rock tree
LUAJIT ?= luajit
LUAROCKS ?= luarocks
TARANTOOL ?= tarantool
FUZZ_SECONDS ?= 60#             for each fuzz target
SANITIZE_SECONDS ?= 300#        for each of the sanitizers' runs
BENCH ?=#                       options of the benches, such as BENCH='--full --runs 15'

CARGO_SH := sh tools/cargo.sh
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib/lua/5.1

export LUAJIT LUAROCKS TARANTOOL ROCKS PROFILE FUZZ_SECONDS SANITIZE_SECONDS SPEC
export CORD_PATH = $(ROCKS)/share/lua/5.1/?.lua;$(ROCKS)/share/lua/5.1/?/init.lua;
export CORD_CPATH = $(ROCKS)/lib/lua/5.1/?.so;
with_rock = LUA_PATH="$$CORD_PATH$${LUA_PATH:-;}" LUA_CPATH="$$CORD_CPATH$${LUA_CPATH:-;}"

.DEFAULT_GOAL := help
.PHONY: help deps deps-build build cord.so install-rock install env demo test test-rust lint spec bench fuzz sanitize clean

help: ## this list
	@sed -n 's/^\([a-z.-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

deps: ## install what building and testing need and this machine lacks (apt-get, as root or with sudo)
	@sh tools/deps.sh test

deps-build:
	@sh tools/deps.sh build

build: deps-build ## build the rock and install it into the project-local tree .rocks
	@sh tools/build.sh

cord.so: ## build the library alone: target/PROFILE/libcord.so (honours CARGO_TARGET_DIR)
	@$(CARGO_SH) build --profile $(PROFILE) --lib

# What the rockspec's install_command calls: LIBDIR for Lua's library path, PREFIX for the header and the type stubs.
install-rock:
	@mkdir -p "$(LIBDIR)" "$(PREFIX)/include" "$(PREFIX)/types"
	@install -m 755 "$$(sh tools/artefact.sh)" "$(LIBDIR)/cord.so"
	@for f in include/*.h; do [ ! -e "$$f" ] || install -m 644 "$$f" "$(PREFIX)/include/"; done
	@[ ! -d types ] || cp -R types/. "$(PREFIX)/types/"

install: cord.so ## without LuaRocks: copy cord.so into PREFIX/lib/lua/5.1 (default /usr/local)
	@mkdir -p "$(LIBDIR)" && install -m 755 "$$(sh tools/artefact.sh)" "$(LIBDIR)/cord.so"

env: ## print the export lines for a shell: eval "$(make -s env)"
	@printf 'export LUA_PATH='"'%s'"'"$${LUA_PATH:-;}"\n' "$$CORD_PATH"
	@printf 'export LUA_CPATH='"'%s'"'"$${LUA_CPATH:-;}"\n' "$$CORD_CPATH"

demo: build ## fibers call a server through net.box, in one plain LuaJIT process
	@$(with_rock) $(LUAJIT) examples/quickstart.lua

test: deps ## everything: lint, Rust tests, the rock, specs on three LuaJIT settings
	@sh tools/test.sh

test-rust: ## the Rust tests of the core and the protocol
	@$(CARGO_SH) test --no-default-features

lint: ## cargo fmt, clippy with warnings denied, luacheck, cargo doc with warnings denied
	@sh tools/test.sh lint

spec: deps build ## the busted specs, once; SPEC='spec/01-fiber_spec.lua' or other busted options narrow it
	@$(with_rock) $(LUAJIT) tools/busted.lua $(SPEC)

bench: build ## bench-lua under luajit and tarantool, tables into docs/bench
	@$(with_rock) $(LUAJIT) bench-lua/all.lua $(BENCH)

fuzz: ## fuzz each decoder for FUZZ_SECONDS; needs cargo-fuzz, sets RUSTC_BOOTSTRAP=1
	@sh tools/fuzz.sh

sanitize: deps ## Rust tests and specs under AddressSanitizer, within SANITIZE_SECONDS; sets RUSTC_BOOTSTRAP=1
	@sh tools/sanitize.sh

clean: ## remove what was built: the cargo target folder and .rocks
	@$(CARGO_SH) clean
	@rm -rf "$(ROCKS)"
