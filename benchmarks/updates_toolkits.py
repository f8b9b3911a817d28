"""Train a Transformer with JoeyNMT, Sockeye or Eole on fairseq's batches, for updates.py.

``python benchmarks/updates_toolkits.py joeynmt|sockeye|eole DATA FAIRSEQ_TRAIN_FLAG...`` reads and
answers lines as updates_worker.py does. The flags set the sizes of the model. An update is the
toolkit's own loss, gradients, clipping and Adam, as its trainer runs them, without data loading and
logging. Install one of these with ``pip install --no-deps``, which leaves out packages that are not
needed here:

- ``joeynmt absl-py importlib_metadata lazy_importer tensorboard zipp``
- ``sockeye``
- ``eole pyonmttok``
"""

import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from updates_worker import batches, serve

Trained = tuple[nn.Module, Callable[[dict[str, Any]], Tensor]]
PAD = 1


def lengths(tokens: Tensor) -> Tensor:
    return tokens.ne(PAD).sum(dim=1)


def right_padded(tokens: Tensor) -> Tensor:
    """Move the pads, which fairseq puts at the left of its sources, to the right.

    ``tokens`` and the result are ``[B, S]``: ``S`` tokens of each of ``B`` sentences.
    """
    order = tokens.eq(PAD).to(torch.uint8).argsort(dim=1, stable=True)
    return tokens.gather(1, order)


def joeynmt(size: Namespace, vocabulary: int, training: Any) -> Trained:
    """Return JoeyNMT's model, and a function that makes an update on a batch and returns the loss.

    The update is that of ``TrainManager._train_step`` and of the lines after its call in JoeyNMT.
    ``size`` has the sizes and the dropout of the model; ``training`` has ``lr``, ``betas``,
    ``clip`` and ``smoothing``.
    """
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    special = {"unk": 0, "pad": PAD, "bos": 2, "eos": 3}
    names = {f"{name}_token": f"<{name}>" for name in special}
    words = Vocabulary(
        [str(number) for number in range(vocabulary - len(special))],
        Namespace(
            **names,
            **{f"{name}_id": number for name, number in special.items()},
            sep_token=None,
            lang_tags=[],
        ),
    )
    side = {
        "type": "transformer",
        "num_layers": size.layers,
        "num_heads": size.heads,
        "hidden_size": size.embed_dim,
        "ff_size": size.ffn_embed_dim,
        "dropout": size.dropout,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": size.embed_dim, "scale": True},
    }
    settings = {"encoder": dict(side), "decoder": dict(side), "tied_embeddings": True}
    model = build_model({**settings, "tied_softmax": True}, words, words).train()
    model.loss_function = ("crossentropy", training.smoothing)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.lr, betas=training.betas)

    def step(sample: dict[str, Any]) -> Tensor:
        source, target = right_padded(sample["net_input"]["src_tokens"]), sample["target"]
        loss, *_ = model(
            return_type="loss",
            src=source,
            src_mask=source.ne(PAD).unsqueeze(1),
            src_length=lengths(source),
            trg_input=sample["net_input"]["prev_output_tokens"],
            trg=target,
            trg_mask=target.ne(PAD).unsqueeze(1),
        )
        loss = loss / sample["ntokens"]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        model.zero_grad()
        return loss

    return model, step


def sockeye(size: Namespace, vocabulary: int, training: Any) -> Trained:
    """Return Sockeye's model, and a function that makes an update on a batch and returns the loss.

    The update is that of Sockeye's ``EarlyStoppingTrainer._step``. ``torch.jit.trace`` compiles the
    model in the first update, as in Sockeye's command. The arguments are those of :func:`joeynmt`.
    """
    from sockeye import constants
    from sockeye.data_io import DataConfig
    from sockeye.encoder import EmbeddingConfig
    from sockeye.loss import CrossEntropyLoss
    from sockeye.model import ModelConfig, SockeyeModel, initialize_parameters
    from sockeye.training import ModelWithLoss
    from sockeye.transformer import TransformerConfig

    longest = 1024
    data = DataConfig(None, longest, longest, 1, 1)
    table = EmbeddingConfig(vocabulary, size.embed_dim, size.dropout)
    side = TransformerConfig(
        model_size=size.embed_dim,
        attention_heads=size.heads,
        feed_forward_num_hidden=size.ffn_embed_dim,
        act_type="relu",
        num_layers=size.layers,
        dropout_attention=0.0,
        dropout_act=0.0,
        dropout_prepost=size.dropout,
        positional_embedding_type=constants.FIXED_POSITIONAL_EMBEDDING,
        preprocess_sequence="",
        postprocess_sequence="drn",
        max_seq_len_source=longest,
        max_seq_len_target=longest,
        depth_key_value=size.embed_dim,
    )
    model = SockeyeModel(ModelConfig(data, vocabulary, vocabulary, table, table, side, side))
    model.apply(initialize_parameters)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=training.lr, betas=training.betas)
    loss = CrossEntropyLoss(label_smoothing=training.smoothing, ignore_label=PAD)
    traced: list[Any] = []

    def step(sample: dict[str, Any]) -> Tensor:
        source = right_padded(sample["net_input"]["src_tokens"])
        target = sample["net_input"]["prev_output_tokens"]
        sides = (
            source.unsqueeze(2).int(),
            torch.stack([lengths(source)] * 2, 1).int()[:, :1],
            target.unsqueeze(2).int(),
            lengths(target).int().unsqueeze(1),
        )
        if not traced:
            traced.append(ModelWithLoss(torch.jit.trace(model, sides, strict=False), [loss]))
        total, values, counts = traced[0](
            *sides, {constants.TARGET_LABEL_NAME: sample["target"].int()}
        )
        total.backward()
        values[0].item(), counts[0].item()
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return model, step


def eole(size: Namespace, vocabulary: int, training: Any) -> Trained:
    """Return Eole's model, and a function that makes an update on a batch and returns the loss.

    The update is that of Eole's ``Trainer._gradient_accumulation`` with one batch. The arguments
    are those of :func:`joeynmt`.
    """
    import pyonmttok
    from eole.config.data import Dataset
    from eole.config.models import TransformerModelConfig
    from eole.config.run import TrainConfig
    from eole.constants import DefaultTokens
    from eole.models.model import EncoderDecoderModel
    from eole.utils.loss import LossCompute
    from eole.utils.optimizers import Optimizer

    special = [DefaultTokens.UNK, DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS]
    words = pyonmttok.build_vocab_from_tokens(
        Counter(str(number) for number in range(vocabulary - len(special))),
        special_tokens=special,
    )
    vocabs = {"src": words, "tgt": words, "specials": {}}
    config = TrainConfig(
        data={"corpus": Dataset(path_src=__file__, path_tgt=__file__)},
        src_vocab="",
        share_vocab=True,
        model=TransformerModelConfig(
            layers=size.layers,
            hidden_size=size.embed_dim,
            embeddings={
                "word_vec_size": size.embed_dim,
                "position_encoding_type": "SinusoidalInterleaved",
            },
            transformer_ff=size.ffn_embed_dim,
            heads=size.heads,
            share_embeddings=True,
            share_decoder_embeddings=True,
        ),
        training={
            "optim": "adam",
            "adam_beta1": training.betas[0],
            "adam_beta2": training.betas[1],
            "learning_rate": training.lr,
            "max_grad_norm": training.clip,
            "label_smoothing": training.smoothing,
            "dropout": [size.dropout],
            "attention_dropout": [0.0],
            "compute_dtype": "fp32",
            "world_size": 1,
            "gpu_ranks": [],
        },
    )
    model = EncoderDecoderModel.for_training(config.model, vocabs, config.training).train()
    optimizer = Optimizer.from_config(model, config)
    loss = LossCompute.from_config(config, model, vocabs)

    def step(sample: dict[str, Any]) -> Tensor:
        source, target = right_padded(sample["net_input"]["src_tokens"]), sample["target"]
        first = sample["net_input"]["prev_output_tokens"][:, :1]
        batch = {
            "src": source,
            "srclen": lengths(source),
            "tgt": torch.cat([first, target], 1),
            "tgtlen": lengths(target) + 1,
            "cid": [""] * len(target),
            "cid_line_number": range(len(target)),
        }
        out = model(batch["src"], batch["tgt"], batch["srclen"])
        total, *_ = loss(batch, out.dec_out, out.attns)
        total = total / sample["ntokens"]
        optimizer.backward(total)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return model, step


TOOLKITS = {"joeynmt": joeynmt, "sockeye": sockeye, "eole": eole}


def main() -> None:
    from fairseq import options, tasks, utils
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.trainer import Trainer

    name, *words = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    cfg = convert_namespace_to_omegaconf(args)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    size = Namespace(
        layers=args.encoder_layers,
        embed_dim=args.encoder_embed_dim,
        ffn_embed_dim=args.encoder_ffn_embed_dim,
        heads=args.encoder_attention_heads,
        dropout=args.dropout,
    )
    training = Namespace(lr=1e-3, betas=(0.9, 0.98), clip=1.0, smoothing=args.label_smoothing)
    model, step = TOOLKITS[name](size, len(task.target_dictionary), training)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    serve(batches(trainer), lambda sample: step(sample).item(), model, answers)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    main()
