"""The rule table of the tales: every sentence the generator writes and the parser accepts.

A rule is ``symbol -> alternatives``; an alternative is text with slots in braces. Two kinds of slot:

* *bound* slots hold one value for the whole tale (the hero, the place, ...): ``BOUND`` says which
  words may stand there;
* *free* slots (``FREE``) are drawn anew each time.

``SENTENCES`` are the rules for whole sentences, by the part they play; ``PLOTS`` say which parts
follow each other. A part whose name ends in ``?`` may be left out; ``a|b`` is a choice of parts.
"""

from .sentences import SENTENCES  # noqa: F401  (part of the table)

# ---- words that stay the same throughout a tale --------------------------------------------------

GIRLS = """
    Mira Anna Lily Nora Ella Ruby Ivy Clara Rosa Emma Lucy Mina Tilda Greta Hana Zoe Maya Sofia Alma
    Edith Flora Ida Juno Kira Lena Nell Olga Petra Runa Sally Tess Una Vera Wilma Yara Daisy Elsa
    Freya Holly Iris Martha Pearl Sunny Molly Nina Polly Hazel Agnes
""".split()
BOYS = """
    Tom Ben Leo Max Finn Otto Hugo Emil Noah Oscar Peter Theo Jack Sam Will Felix Jonas Karl Lars
    Milo Nils Owen Paul Rufus Simon Toby Victor Walter Axel Bruno Casper Dan Erik Fred George Henry
    Ivan Jasper Kit Luke Martin Oliver Pip Robin Stefan Tim Ulf Amos
""".split()
# Made-up names teach the model to copy a name that it has never seen.
NAME_STARTS = """
    Ba Be Bo Bri Ca Co Da De Do Dra Fa Fe Fi Ga Go Gri Ha He Jo Ka Ki Ko La Le Li Lo Lu Ma Me Mo Na
    Ne No Pa Pe Po Ra Re Ri Ro Sa Se Sha So Ta Te Ti To Tri Va Ve Vi Wa We Wi Xa Ya Za Ze Zo Zu
""".split()
NAME_MIDDLES = "b bb d dd g l ll m mm n nn nd p pp r rr rl s ss st sh t tt v x z".split()
GIRL_ENDS = "a ia ana ina ella etta y ie elle".split()
BOY_ENDS = "o in on er us an ert ick os ard".split()

BOUND = {
    "place": [
        f"the {p}"
        for p in """
            sea river forest hill mill market castle garden lake lighthouse bridge meadow harbour
            village cave orchard tower well farm beach island valley marsh pond barn
        """.split()
    ],
    "thing": """
        kite lantern key drum bell boat hat scarf ball book spoon flute basket map ring button cup
        feather mitten whistle coat blanket teapot mirror clock candle ribbon wagon broom kettle
        pearl locket
    """.split(),
    "look": """
        red blue green yellow golden silver white small little tiny wooden shiny round striped brown
        purple warm pretty
    """.split(),
    "animal": """
        fox bear lark cat mouse hen goose wolf hare frog horse dragon donkey crow rabbit hedgehog
        squirrel duck goat badger swan turtle seal robin deer mole pony
    """.split(),
    "goods": """
        apples pears eggs shells stones berries nuts coins buns plums carrots flowers fish cakes
        cherries beans candles turnips mushrooms chestnuts
    """.split(),
    "trait": """
        brave kind clever quiet curious cheerful shy gentle stubborn merry lonely patient proud
        small young sleepy hungry busy
    """.split(),
    "far": [],  # another place than `place`
    "family": "mother father grandmother grandfather sister brother aunt uncle".split(),
    "fear": ["the dark", "the thunder", "deep water", "loud noises", "high places", "the shadows", "the night"],
    "wish": [
        "fly like a bird",
        "sail across the water",
        "hear the stars sing",
        "talk with the animals",
        "sleep under the stars",
        "climb the highest hill",
        "dance in the snow",
        "see the whole world",
        "play the flute",
        "bake the best bread in the land",
        "find a treasure",
        "catch a falling star",
    ],
    "mood": """
        big old wise friendly tired shy grey young talking funny grumpy gentle thin fat clever
    """.split(),  # the animal's
    "season": "spring summer autumn winter".split(),
    "weather": "rain snow wind storm fog sunshine frost".split(),
}
NUMBERS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen
""".split()
PRONOUNS = {  # slot -> (for a girl, for a boy); the same with an f in front for the friend
    "he": ("she", "he"),
    "his": ("her", "his"),
    "him": ("her", "him"),
    "girl": ("girl", "boy"),
}

# ---- words drawn anew ----------------------------------------------------------------------------

FREE = {
    "day": "day morning evening afternoon".split(),
    "when": ["one {day}", "one {sky} {day}", "early one {day}", "on a {sky} {day}", "one day in {season}"],
    "sky": "cold warm bright grey windy quiet sunny misty golden clear chilly".split(),
    "home": [
        "a little house",
        "a small cottage",
        "a stone house",
        "a wooden hut",
        "a tall house",
        "a crooked house",
        "a cosy house",
        "a white cottage",
    ],
    "walked": "walked ran hurried wandered went strolled skipped".split() + ["walked slowly", "went alone"],
    "looked": ["looked", "searched", "hunted"],
    "spots": [
        "under the bed",
        "behind the door",
        "in the tall grass",
        "under the stairs",
        "beside the path",
        "behind the old oak",
        "under a stone",
        "in the hay",
        "near the fence",
        "behind the well",
        "in the hollow tree",
        "under the bench",
        "among the leaves",
        "by the water",
    ],
    "feeling": "sad afraid tired worried lonely cold lost sorry cross".split(),
    "glad": "happy glad proud pleased merry cheerful content delighted".split(),
    "softly": "softly kindly gently quietly slowly shyly bravely".split(),
    "loudly": "loudly angrily crossly sharply".split(),
    "spoke": ["said", "whispered"],
    "hurried": ["hurried", "ran", "went", "walked"],
    "said": ["said", "answered", "replied", "whispered"],
    "asked": ["asked", "said"],
    "cried": ["cried", "shouted", "called"],
    "meal": [
        "warm soup",
        "fresh bread",
        "hot tea",
        "honey cake",
        "apple pie",
        "sweet porridge",
        "bread and cheese",
        "roasted nuts",
        "plum cake",
        "hot milk",
    ],
    "food": [
        "a piece of bread",
        "a bowl of soup",
        "a warm bun",
        "a slice of cheese",
        "a cup of milk",
        "an apple",
        "a handful of nuts",
        "a honey cake",
    ],
    "long": [
        "all day",
        "all night",
        "for a long time",
        "for hours",
        "until evening",
        "from morning to night",
        "until the stars came out",
    ],
    "together": ["together", "side by side", "hand in hand", "like old friends"],
    "promise": [
        "never to quarrel again",
        "to share everything",
        "to be friends for ever",
        "to tell the truth",
        "to listen first",
        "to help each other",
    ],
    "lesson": [
        "a kind word costs nothing",
        "a friend is better than gold",
        "sharing makes a small thing big",
        "patience opens many doors",
        "even the smallest can help",
        "every storm comes to an end",
        "two can do what one cannot",
        "a good deed always comes back",
        "it is brave to say sorry",
        "home is the best place of all",
        "the best wishes are shared",
        "kindness makes light work",
    ],
    "number": "three five seven nine ten twelve".split(),
    "trouble": [
        "I have lost my way",
        "my foot is caught in a root",
        "I have nothing to eat",
        "I am cold to the bone",
        "I cannot find my home",
        "my nest fell down",
        "I hurt my leg",
        "no one will play with me",
        "I cannot sleep at night",
        "the wind blew my house away",
    ],
    "praise": [
        "You are very kind",
        "You are a true friend",
        "I will never forget this",
        "You have a good heart",
        "Thank you with all my heart",
        "No one was ever so kind to me",
    ],
    "sound": ["a soft knock", "a small voice", "a strange song", "a loud crash", "a sad cry", "a merry tune"],
}

# ---- which parts follow each other ---------------------------------------------------------------

PLOTS = {
    "lost": [
        "opening",
        "has_thing",
        "weather?",
        "loses_thing",
        "searches?",
        "friend_helps?|animal_found?",
        "found",
        "ending|ending_friend?",
    ],
    "quarrel": ["opening", "friends?", "quarrel", "anger", "weather?", "regret?", "sorry", "peace", "ending_friend?"],
    "wish": ["opening", "wishes", "weather?", "meets", "offer", "answer_wish?", "granted", "ending|ending_animal?"],
    "wish_thing": [
        "opening",
        "wishes_thing",
        "weather?",
        "meets",
        "offer",
        "answer_thing?",
        "granted_thing",
        "ending|ending_animal?",
    ],
    "wish_far": [
        "opening",
        "wishes_far",
        "weather?",
        "meets",
        "offer?",
        "answer_far",
        "granted_far",
        "ending|ending_animal?",
    ],
    "help": ["opening", "outing?", "weather?", "meets", "trouble", "help", "thanks|returned", "ending_animal|ending?"],
    "sum": ["opening", "friends?", "gather", "ask_sum?", "sum", "give_away?", "share", "ending|ending_friend?"],
    "brave_friend": ["opening", "fear?", "weather", "call_friend", "deed", "rescue_friend", "proud", "ending_friend?"],
    "brave_animal": ["opening", "fear?", "weather", "call_animal", "deed", "rescue_animal", "proud", "ending?"],
    "walk": ["opening", "outing", "weather?", "meets", "greet", "answer?", "visit", "ending|ending_animal"],
}
# ---- talk ----------------------------------------------------------------------------------------

ASK = [
    "Tell me a tale about {topic}.",
    "Tell me a story about {topic}.",
    "Please tell me a tale about {topic}.",
    "Can you tell me a story about {topic}?",
    "Write a short tale about {topic}.",
    "A tale about {topic}, please.",
    "I want to hear about {topic}.",
    "Do you know a story about {topic}?",
    "Tell me about {topic}.",
    "Write a story about {topic}.",
]
ASK_ANY = [
    "Tell me a tale.",
    "Tell me a story.",
    "Tell me another one.",
    "Please tell me a tale.",
    "A story, please.",
    "Write a short tale.",
    "Tell me a short story.",
]
SYSTEM = ["You are a teller of short tales.", "You tell short and friendly tales.", "You are a helpful assistant."]
SMALL_TALK = [  # (what the user says, what the model answers)
    (
        ["Hello!", "Hello.", "Hi!", "Hi there.", "Hello there!", "Good morning.", "Good evening.", "Hey!"],
        [
            "Hello! Would you like to hear a tale?",
            "Hello! Tell me a name and a place, and I will tell you a tale.",
            "Good day! Shall I tell you a story?",
        ],
    ),
    (
        ["Who are you?", "What are you?", "What can you do?", "What is your name?", "Help."],
        [
            "I am a small teller of tales. Give me a name and a place, and I will begin.",
            "I am a very small model that tells short tales. Ask me for one!",
        ],
    ),
    (
        ["Thank you.", "Thanks!", "Thank you!", "That was nice.", "Well done!"],
        ["You are welcome! Shall I tell you another?", "You are welcome. Come back for another tale!"],
    ),
    (["How are you?", "How are you today?"], ["I am well, thank you. Shall I tell you a tale?"]),
    (["Goodbye.", "Bye!", "Good night."], ["Goodbye, and sweet dreams!", "Goodbye! Come back for another tale."]),
]
SUM_TALK = (
    ["What is {n1} plus {n2}?", "How much is {n1} plus {n2}?", "What is {n1} and {n2}?", "Can you add {n1} and {n2}?"],
    ["{n1} plus {n2} is {sum}.", "{n1} and {n2} make {sum}."],
)
