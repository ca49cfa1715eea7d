"""Bad inputs of `aot` that are found before the TPU compiler is called."""

from __future__ import annotations

from tests.bad_inputs.case import Case, Table

CASES = [
    Case("no experiment", says="--config is missing, for example --config=experiments/pretrain/bert_base.py", without="--config"),
    Case("no topology", says="--topology is missing, for example --topology=v5e:4x4", without="--topology"),
    Case("an unknown flag", "--topolgy=v5e:4x4", "unknown argument --topolgy=v5e:4x4: did you mean '--topology'?"),
    Case("an experiment that is not there", "--config=bert_bse.py",
         "--config=bert_bse.py: there is no file ... did you mean 'experiments/pretrain/bert_base.py'?"),
    Case("another experiment that is not there", "--against=/nope",
         "--against=/nope: there is no file /nope ... the experiments are bert_base, bert_large, bert_miniature, bilm, boolq,"),
    Case("a key that is none", "--config.model.hiden_size=8",
         "--config.model.hiden_size=8: there is no 'hiden_size' in config.model; did you mean 'model.hidden_size'?"),
    Case("a key of another experiment that is not given", "--against.seed=1",
         "--against.seed sets a key of --against, which is not given; add --against=FILE"),
    Case("a topology without a shape", "--topology=v5e",
         "--topology=v5e is not written as GENERATION:SHAPE, such as v5e:4x4 ... there are v4, v5e, v5p, v6e, v7x, for example "
         "v4:2x2x4,"),
    Case("a topology of more digits than Python reads", f"--topology=v5e:{'9' * 5000}x4",
         " is not written as GENERATION:SHAPE, such as v5e:4x4 ... there are v4, v5e, v5p, v6e, v7x, for example v4:2x2x4,"),
    Case("a number for a topology", "--topology=v5e-16",
         "--topology=v5e-16 has a number where a shape is needed ... v5e has 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"),
    Case("a shape that is none", "--topology=v5e:3x5",
         "--topology=v5e:3x5: v5e has no slice 3x5; nearest: v5e:4x4 (16 chips); v5e has 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16,"),
    Case("a generation that is none", "--topology=v9x:4x4",
         "--topology=v9x:4x4: there is no TPU 'v9x' ... there are v4, v5e, v5p, v6e, v7x, for example v4:2x2x4, v5e:4x4,"),
    Case("no slices", "--slices=0", "--slices=0 must be at least 1 and at most 65,536"),
    Case("slices told twice", "--topology=4xv5e:4x4 --slices=2",
         "--topology=4xv5e:4x4 says 4 slices, but --slices=2; give only one of them"),
    Case("a step that is none", "--step=trian", "--step=trian is unknown: did you mean 'train'?"),
    Case("the step of another command", "--step=finetune",
         "--step=finetune does not apply to $experiment, a pretraining experiment; give one of experiments/finetune/"),
    Case("a phase that is not there", "--phase=7", "--phase=7 does not exist in $experiment; give a phase from 0 to 1"),
    Case("a phase of a task", "--config=$repository/experiments/finetune/squad.py:v1.1 --phase=0",
         "--phase=0 does not apply to $repository/experiments/finetune/squad.py:v1.1, a fine-tuning experiment without phases; "
         "leave it out"),
    Case("a step of a task", "--config=$repository/experiments/finetune/squad.py:v1.1 --step=eval",
         "--step=eval does not apply to $repository/experiments/finetune/squad.py:v1.1, a fine-tuning experiment; leave it out"),
    Case("no rows", "--rows=0", "--rows=0 must be at least 1"),
    Case("rows of pretraining", "--rows=100",
         "--rows=100 does not apply to $experiment, whose number of steps is fixed; leave it out"),
    Case("a price below nothing", "--price=-1", "--price=-1 must be at least 0 and at most 1e+09"),
    Case("a price that is not a number", "--price=nan", "--price=nan must be a finite number, at least 0 and at most 1e+09"),
    Case("a price without end", "--price=inf", "--price=inf must be a finite number, at least 0 and at most 1e+09"),
    Case("a word for a price", "--price=cheap", "--price=cheap must be a number, at least 0 and at most 1e+09"),
    Case("programs that nothing loads", "--step=eval --save=programs",
         "--save=programs saves training steps for `pretrain --compiled`, and no command loads the ... leave it out"),
    Case("programs into a file", "--save=programs", "--save=programs is a file; name a directory", files={"programs": ""}),
    Case("an empty experiment", "--config=", "--config is missing, for example --config=experiments/pretrain/bert_base.py"),
]  # fmt: skip
TABLE = Table("aot", "--config=$experiment --topology=v5e:4x4", CASES)
