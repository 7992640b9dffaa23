"""What each panel shows, how it is computed, what it looks like when a run is healthy and when not, and what to change.
Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dapo_core.run import metrics
from dapo_core.run.metrics import Panel


@dataclass(frozen=True)
class Topic:
    """The help page's section on a panel. `formula` is LaTeX; `metric` is the curve whose pictures are shown."""

    panel: Panel
    meaning: str
    formula: str
    healthy: str
    unhealthy: str
    change: str
    metric: str

    @property
    def anchor(self) -> str:
        """The topic's key in URLs."""
        return self.panel.anchor

    @property
    def title(self) -> str:
        """The panel's title."""
        return str(self.panel)


TOPICS: Final[Sequence[Topic]] = (
    Topic(
        Panel.LENGTH,
        "Mean and longest length of the responses of a step. It shows how much the policy reasons, and it is the first "
        "thing to move when something breaks.",
        r"\frac{1}{N}\sum_{i=1}^{N} |o_i|",
        "Rises, or rises and settles, while accuracy rises.",
        "Jumps to the limit and stays (rambling), or falls to almost nothing while reward stays low (giving up).",
        "At the limit: raise `batch.maxResponseTokens` or begin the overlong penalty earlier. Falling: look at "
        "samples; the reward may pay for short wrong answers.",
        metrics.LENGTH_MEAN,
    ),
    Topic(
        Panel.REWARD,
        "Mean reward of all generated responses, and of those that were trained on. Dynamic sampling drops "
        "groups that are all right, so the second curve lags behind the policy: read the first for progress.",
        r"R(o) = R_{\text{answer}}(o) + R_{\text{length}}(o), \qquad R_{\text{answer}} \in \{+1, -1\}",
        "Rises steadily, faster at the beginning.",
        "Falls from its best and does not come back, or rises while validation stays: the reward is being gamed.",
        "Falling: resume from a checkpoint before the fall with a lower `optimizer.learningRate`. Gamed: read samples "
        "with a high reward, and fix the reward.",
        metrics.REWARD_GENERATED,
    ),
    Topic(
        Panel.ENTROPY,
        "How undecided the policy is about each token, and how probable the tokens were that it sampled. It explores "
        "between certainty and noise.",
        r"H = -\frac{1}{T}\sum_t \sum_{v} \pi_\theta(v \mid q, o_{<t}) \log \pi_\theta(v \mid q, o_{<t})",
        "Falls at first and then holds, or rises slowly (the paper's figure 2). A small task that is nearly solved has "
        "low entropy, which is fine.",
        "Falls to nothing within a few steps while accuracy stagnates (collapse), or multiplies (noise).",
        "Collapse: raise `algorithm.clipHigh` (clip-higher), or the temperature. Explosion: lower "
        "`optimizer.learningRate` or `algorithm.clipHigh`.",
        metrics.ENTROPY,
    ),
    Topic(
        Panel.ACCURACY,
        "mean@k: the share of right responses among k samples of each validation prompt, with an interval of 1.96 "
        "standard errors over prompts. Also accuracy on training prompts before and after filtering.",
        r"\text{mean@}k = \frac{1}{P}\sum_{p=1}^{P} \frac{1}{k}\sum_{j=1}^{k} [\,o_{p,j}\ \text{is right}\,], \qquad "
        r"\pm 1.96 \sqrt{\tfrac{s_P^2}{P}}",
        "Validation follows training with its interval around it.",
        "Training rises and validation does not: memorizing. Steps within the interval are noise, not progress.",
        "More or other prompts, fewer epochs; more validation prompts or samples for a narrower interval.",
        metrics.ACCURACY_GENERATED,
    ),
    Topic(
        Panel.GROUPS,
        "Shares of prompts whose responses were all wrong, mixed, or all right. Only mixed groups have an advantage "
        "that is not zero: only they contribute a gradient.",
        r"\hat A_{i} = \frac{R_i - \operatorname{mean}(R)}{\operatorname{std}(R)}, \qquad "
        r"0 < |\{o_i \text{ right}\}| < G",
        "Most groups are mixed; all-right groups grow as the policy learns.",
        "Nearly all wrong: the prompts are too hard. Nearly all right: too easy, and steps get slower and slower.",
        "Choose prompts that the policy solves sometimes; larger groups (`batch.responsesPerPrompt`) make more of them "
        "mixed.",
        metrics.GROUPS_ALL_WRONG,
    ),
    Topic(
        Panel.SAMPLING,
        "How many batches of prompts were generated to fill one with mixed groups: the price of dynamic sampling.",
        r"\frac{\text{prompts generated}}{\text{prompts of a batch}}",
        "Between one and three.",
        "Keeps growing, up to `maxGenerationBatches`: too few groups are mixed.",
        "As for group outcomes; `algorithm.dynamicSampling.maxGenerationBatches` and `onExhausted` decide what happens "
        "at the limit.",
        metrics.GENERATION_BATCHES,
    ),
    Topic(
        Panel.GRADIENT,
        "L2 norm of the gradient before it is clipped.",
        r"\lVert \nabla_\theta J \rVert_2",
        "Roughly constant, with single spikes.",
        "Grows by orders of magnitude, or is not finite (a red band on the charts).",
        "Lower `optimizer.learningRate` or `optimizer.gradientClip`; resume from an earlier checkpoint.",
        metrics.GRADIENT_NORM,
    ),
    Topic(
        Panel.CLIP,
        "Share of tokens whose probability moved past the clip range in this step's updates, above and below "
        "separately. The upper side shows clip-higher at work.",
        r"r_t > 1 + \varepsilon_{\text{high}} \quad\text{or}\quad r_t < 1 - \varepsilon_{\text{low}}",
        "Well under one percent, both sides alike.",
        "Several percent: steps are too large, and clipped tokens contribute no gradient.",
        "Lower `optimizer.learningRate`, or take fewer updates per step (`batch.miniBatchResponses` larger).",
        metrics.CLIP_FRACTION_HIGH,
    ),
    Topic(
        Panel.KL,
        "How far the updates of a step have moved the policy from the one that generated its responses.",
        r"\mathbb{E}_t\left[\log \pi_{\text{old}}(o_t) - \log \pi_\theta(o_t)\right]",
        "Near zero, and steady.",
        "Grows from step to step.",
        "Lower `optimizer.learningRate`; fewer updates per step.",
        metrics.KL,
    ),
    Topic(
        Panel.MISMATCH,
        "The same tokens have one probability in the rollout engine and another in the trainer: kernels and precision "
        "differ. And how many versions the policy that sampled is behind.",
        r"\frac{1}{T}\sum_t \left|\pi_{\text{rollout}}(o_t) - \pi_{\text{train}}(o_t)\right|",
        "Under one percent.",
        "Grows over time: the gradient is computed for a different policy than the one that samples.",
        "Use the same `model.dtype` for both, or turn on `algorithm.importanceCorrection`.",
        metrics.MISMATCH,
    ),
    Topic(
        Panel.SPEED,
        "How the time of a step is spent, and tokens per second per accelerator.",
        r"\text{tokens/s} = \frac{\text{tokens of the step}}{\text{seconds} \cdot \text{accelerators}}",
        "Most of it is generation, and it is steady.",
        "Generation grows with response length or with generation batches; checkpoints or weight updates take long.",
        "More rollout replicas (`topology.rollout.replicas`), or `topology.mode: Separated`.",
        metrics.STEP_SECONDS,
    ),
    Topic(
        Panel.HARDWARE,
        "Memory of the accelerator and of the host, and the share of the accelerator's peak FLOPs that is used (0 on "
        "CPUs, for which it is not defined).",
        r"\text{MFU} = \frac{\text{flops needed}}{\text{flops possible}}",
        "Flat after the first steps.",
        "Memory that keeps growing: the process will be killed when there is none left.",
        "Smaller micro-batches through `verlOverrides`, `model.gradientCheckpointing: true`.",
        metrics.HOST_MEMORY,
    ),
    Topic(
        Panel.TRUNCATED,
        "Share of responses that were truncated at the length limit, and responses whose check failed or timed out.",
        r"\frac{|\{o_i : |o_i| \ge L_{\max}\}|}{N}",
        "A few percent, no failed checks.",
        "Half of the responses: the policy rambles, and the signal is about length.",
        "Raise `batch.maxResponseTokens`, widen `algorithm.overlong.penalty`; for failed checks, `reward`.",
        metrics.TRUNCATED,
    ),
    Topic(
        Panel.LOSS,
        "The policy's surrogate loss. Its level says little in reinforcement learning; what matters is that it stays "
        "finite.",
        r"-\frac{1}{\sum_i |o_i|}\sum_i\sum_t \min\left(r_t \hat A, \operatorname{clip}(r_t, "
        r"1-\varepsilon_{\text{low}}, 1+\varepsilon_{\text{high}})\hat A\right)",
        "Small, around zero.",
        "Not finite, or far from zero for many steps.",
        "As for the gradient norm.",
        metrics.POLICY_LOSS,
    ),
)
