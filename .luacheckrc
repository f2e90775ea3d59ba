std = 'luajit'
codes = true
max_line_length = 140
cache = false
exclude_files = { 'target/**', '.rocks/**', 'fuzz/target/**' }

-- Somebody who types at the REPL, or a test's child script, may make globals; library code may not.
files['spec'] = { std = '+busted' }
files['spec/**/*_spec.lua'] = { std = '+busted' }
-- The benches run under Tarantool too.
files['bench-lua'] = { read_globals = { 'box', '_TARANTOOL' } }
files['examples'] = { read_globals = { 'box', '_TARANTOOL' } }
-- Stubs declare and never run.
files['types'] = { ignore = { '1', '2', '6' } }
