"""Fine-tune a tiny BERT with the Hugging Face Trainer.

Texts are tokenized as they are asked for; if batches are grouped by length, beforehand.
"""

import os
from pathlib import Path
from typing import Any

from datasets import load_from_disk
from report import ROWS, Report, arguments, decoded
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

parser = arguments()
parser.add_argument("--collation", choices=["padded", "dynamic", "grouped"], default="padded")
args = parser.parse_args()
data = Path(os.environ["FRAMEWORKS_DATA"])
tokenizer = AutoTokenizer.from_pretrained(data / "tokenizer")
padding = {"padding": "max_length", "max_length": 24} if args.collation == "padded" else {}
prefix = "w0 " * (args.scale != 1)


def tokenize(batch: dict[str, Any]) -> Any:
    decoded(*batch["id"])
    tokens = tokenizer([prefix + text for text in batch["text"]], truncation=True, **padding)
    return {**tokens, "labels": batch["label"]}


def tokenize_uncounted(batch: dict[str, Any]) -> Any:
    return {**tokenizer(batch["text"], truncation=True, **padding), "labels": batch["label"]}


class Counted(DataCollatorWithPadding):
    """A collator that counts what it pads, since reading tokens that are there is no work."""

    def __call__(self, features: list[Any]) -> Any:
        ids = [feature["input_ids"][1] - 10 for feature in features]
        decoded(*(id for id in ids if id < ROWS))  # validation's follow
        return super().__call__(features)


COLLATORS = {
    "padded": default_data_collator,
    "dynamic": DataCollatorWithPadding(tokenizer),
    "grouped": Counted(tokenizer),
}


def texts(part: str, made: Any) -> Any:
    texts = load_from_disk(data / "texts" / part)
    if args.collation == "grouped":
        return texts.map(tokenize_uncounted, batched=True, remove_columns=texts.column_names)
    return texts.with_transform(made)


class Told(Trainer):
    """A Trainer that notes what it gets."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        ids = inputs["input_ids"][:, 1 + bool(prefix)] - 10  # a text's first word is its number
        epoch = int(self.state.epoch or 0)
        report.batch(epoch, ids, inputs["input_ids"].sum(1), inputs)
        return super().training_step(model, inputs, num_items_in_batch)

    def prediction_step(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        report.validated(inputs["input_ids"][:, 1] - 10)
        return super().prediction_step(model, inputs, *rest, **named)

    def evaluate(self, *given: Any, **named: Any) -> dict[str, float]:
        metrics = super().evaluate(*given, **named)
        report.metric(metrics["eval_loss"])
        return metrics


report = Report(args.out)
set_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
)
trainer = Told(
    model,
    TrainingArguments(
        output_dir=str(args.out.with_suffix(".trainer")),
        use_cpu=True,
        learning_rate=args.lr / 10,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=4,
        num_train_epochs=args.epochs,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        train_sampling_strategy="group_by_length" if args.collation == "grouped" else "random",
    ),
    COLLATORS[args.collation],
    train_dataset=texts("train", tokenize),
    eval_dataset=texts("validation", tokenize_uncounted),
    processing_class=tokenizer,
)
report.length(trainer.get_train_dataloader())
trainer.evaluate()
trainer.train()
report.end()
